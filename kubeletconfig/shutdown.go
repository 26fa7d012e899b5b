package kubeletconfig

import (
	"time"

	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/nodeshutdown"
)

// The gates of graceful node shutdown, which are on by default.
const (
	gateShutdown           = "GracefulNodeShutdown"
	gateShutdownByPriority = "GracefulNodeShutdownBasedOnPodPriority"
)

// shutdown checks what a kubelet checks: with a gate that is off, its fields must not be set.
func (v *validator) shutdown() {
	all, critical, priorities := v.ShutdownGracePeriod.Duration, v.ShutdownGracePeriodCriticalPods.Duration, len(v.ShutdownGracePeriodByPodPriority)
	for field, d := range map[string]time.Duration{"shutdownGracePeriod": all, "shutdownGracePeriodCriticalPods": critical} {
		v.fail(d != 0 && d < time.Second, "%s: %v must be 0 or at least 1s", field, d)
		v.fail(d > 0 && isOff(v.FeatureGates, gateShutdown), "%s: needs featureGates[%s]; remove the gate, or set 0", field, gateShutdown)
	}
	v.fail(critical > all, "shutdownGracePeriodCriticalPods: %v must be at most shutdownGracePeriod, %v", critical, all)
	v.fail(priorities > 0 && (all > 0 || critical > 0), "shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods; remove them")
	v.fail(priorities > 0 && isOff(v.FeatureGates, gateShutdownByPriority), "shutdownGracePeriodByPodPriority: needs featureGates[%s]; remove the gate", gateShutdownByPriority)
	if err := nodeshutdown.CheckGroups(byPriority(v.KubeletConfiguration)); err != nil {
		v.fail(true, "shutdownGracePeriodByPodPriority: %w", err)
	}
}

func isOff(gates map[string]bool, name string) bool {
	on, given := gates[name]
	return given && !on
}

// shutdownGroups returns how long pods have to terminate when the machine shuts down.
func shutdownGroups(k *v1beta1.KubeletConfiguration) []nodeshutdown.Group {
	if groups := byPriority(k); len(groups) > 0 && !isOff(k.FeatureGates, gateShutdown) {
		return groups
	}
	return nodeshutdown.GracePeriods(k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration)
}

func byPriority(k *v1beta1.KubeletConfiguration) []nodeshutdown.Group {
	var groups []nodeshutdown.Group
	for _, p := range k.ShutdownGracePeriodByPodPriority {
		groups = append(groups, nodeshutdown.Group{Priority: p.Priority, Period: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	return groups
}
