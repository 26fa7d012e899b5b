package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/safe"
)

// A Reporter reports conditions of the node other than Ready. It is called every
// second; it must not block, and the result is the caller's. Heartbeat and transition
// times are ignored.
type Reporter interface {
	Conditions() []corev1.NodeCondition
}

// A Check is one thing that must be well for the node to be Ready. It returns what is
// wrong, and must not block.
type Check func() error

// ConditionsConfig describes Conditions.
type ConditionsConfig struct {
	Checks    []Check    // runtime, network, PLEG, syncs, ...
	Reporters []Reporter // *eviction.Manager is one. The first that reports a type wins
	Logger    *slog.Logger
}

// Conditions computes the conditions of a node from checks and reporters, and keeps the
// times of their transitions. The methods may be called from any goroutine.
type Conditions struct {
	cfg ConditionsConfig

	mu      sync.Mutex // guards the fields below; no reporter is called under it
	current []corev1.NodeCondition
}

// NewConditions validates cfg.
func NewConditions(cfg ConditionsConfig) (*Conditions, error) {
	for i, c := range cfg.Checks {
		if c == nil {
			return nil, fmt.Errorf("node: ConditionsConfig.Checks[%d]: required", i)
		}
	}
	for i, r := range cfg.Reporters {
		if r == nil {
			return nil, fmt.Errorf("node: ConditionsConfig.Reporters[%d]: required", i)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Checks, cfg.Reporters = slices.Clone(cfg.Checks), slices.Clone(cfg.Reporters)
	return &Conditions{cfg: cfg}, nil
}

// At returns the conditions at now: MemoryPressure, DiskPressure and PIDPressure, which
// are False if no reporter has them, then those of the reporters, and Ready last, as with
// a kubelet. A condition whose status did not change keeps its transition time. The
// caller owns the result.
func (c *Conditions) At(now time.Time) []corev1.NodeCondition {
	conditions := withoutPressure()
	reported := map[corev1.NodeConditionType]bool{corev1.NodeReady: true} // Ready is ours
	for _, r := range c.cfg.Reporters {
		for _, condition := range c.report(r) {
			if reported[condition.Type] {
				continue
			}
			reported[condition.Type] = true
			if i := index(conditions, condition.Type); i >= 0 {
				conditions[i] = condition
			} else {
				conditions = append(conditions, condition)
			}
		}
	}
	errs := make([]error, 0, len(c.cfg.Checks))
	for _, check := range c.cfg.Checks {
		errs = append(errs, safe.Call(c.cfg.Logger, "node readiness check", check))
	}
	conditions = append(conditions, Ready(errs...))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = SetTimes(c.current, conditions, now)
	return slices.Clone(c.current)
}

// report calls a reporter of the user, whose panic must not end the process.
func (c *Conditions) report(r Reporter) (conditions []corev1.NodeCondition) {
	safe.Do(c.cfg.Logger, "node condition reporter", func() { conditions = r.Conditions() })
	return conditions
}

func index(conditions []corev1.NodeCondition, kind corev1.NodeConditionType) int {
	return slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
}

// SetTimes returns current with its heartbeat at now. The transition time of a condition
// is that in previous if its status is the same, else now.
func SetTimes(previous, current []corev1.NodeCondition, now time.Time) []corev1.NodeCondition {
	out := slices.Clone(current)
	for i := range out {
		out[i].LastHeartbeatTime, out[i].LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		if j := index(previous, out[i].Type); j >= 0 && previous[j].Status == out[i].Status && !previous[j].LastTransitionTime.IsZero() {
			out[i].LastTransitionTime = previous[j].LastTransitionTime
		}
	}
	return out
}

// Ready returns the condition Ready with the kubelet's reason: true if all errs are nil.
// Its message is a list of the errors that differ, bounded in length.
func Ready(errs ...error) corev1.NodeCondition {
	var messages []string
	for _, err := range errs {
		if err != nil && !slices.Contains(messages, err.Error()) {
			messages = append(messages, err.Error())
		}
	}
	if errors.Join(errs...) == nil {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	}
	message := strings.Join(messages, ", ")
	if len(messages) > 1 {
		message = "[" + message + "]"
	}
	message = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "?")
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: message}
}

// maxMessage bounds the message of a condition: what a runtime says is not bounded.
const maxMessage = 4 << 10

// withoutPressure are the pressure conditions of a node on which nothing is short.
func withoutPressure() []corev1.NodeCondition {
	return []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
	}
}
