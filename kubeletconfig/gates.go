package kubeletconfig

import (
	"fmt"
	"maps"
	"slices"
)

// A Gate is a feature gate of the kubelet that changes what the agent does.
type Gate struct {
	Name string
	Note string // what it decides
}

// The gates that change what the agent does.
const (
	gateVerifyPulled  = "KubeletEnsureSecretPulledImages"
	gateFasterRestart = "ReduceDefaultCrashLoopBackOffDecay"
	gateMemoryQoS     = "MemoryQoS"
	gateWebSockets    = "ExtendWebSocketsToKubelet"
	gatePodsAPI       = "PodsAPI"
)

// Gates returns the feature gates that change what the agent does. All others have no meaning here:
// features are configured by their fields, and those of pods are there if the agent has them.
func Gates() []Gate {
	return []Gate{
		{gateVerifyPulled, "false: images on the node may be used without the credentials to pull them, as with the policy NeverVerify"},
		{gateShutdown, "false: pods are not terminated when the machine shuts down, and shutdownGracePeriod must be 0"},
		{gateShutdownByPriority, "false: shutdownGracePeriodByPodPriority must be empty"},
		{gateMemoryQoS, "false: memoryThrottlingFactor and memoryReservationPolicy must not be set"},
		{gateCPUBetaOptions, "false: cpuManagerPolicyOptions must not have distribute-cpus-across-numa"},
		{gateWebSockets, "false: the API server converts the WebSockets of its clients to SPDY, and does not pass them on to this node"},
		{gatePodsAPI, "false: the pods API is not served"},
		{gateFasterRestart, "true: the back-off of a container that keeps exiting begins with a second and grows to a minute, unless crashLoopBackOff sets another limit"},
	}
}

// WebSockets reports whether an API server may pass WebSockets on to this node, by the gate for it: that is
// server.FeatureWebSockets of a node with a server. Default: true.
func (c *Config) WebSockets() bool { return !isOff(c.kubelet.FeatureGates, gateWebSockets) }

// PodsAPI reports whether the pods API is to be served, by the gate for it: that is package server/podsapi.
// Default: true.
func (c *Config) PodsAPI() bool { return !isOff(c.kubelet.FeatureGates, gatePodsAPI) }

// withGates returns gates with others over them.
func withGates(gates, over map[string]bool) map[string]bool {
	all := map[string]bool{}
	maps.Copy(all, gates)
	maps.Copy(all, over)
	return all
}

func gateNotices(gates map[string]bool) []string {
	var notices []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if !slices.ContainsFunc(Gates(), func(g Gate) bool { return g.Name == name }) {
			notices = append(notices, fmt.Sprintf("featureGates[%s] has no effect: features are configured by their fields", name))
		}
	}
	return notices
}
