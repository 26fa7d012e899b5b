package podsync

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// PodHasExclusiveCPUs returns a function that reports whether an injector gives containers of a
// pod CPUs for themselves, so that the pod is to have no CPU quota. It is nil if none does.
func PodHasExclusiveCPUs(log *slog.Logger, injectors []Injector) func(pod *corev1.Pod) bool {
	assigners := cpuAssigners(injectors)
	if len(assigners) == 0 {
		return nil
	}
	return func(pod *corev1.Pod) bool {
		return anyAssigner(log, assigners, pod, func(a CPUAssigner) bool { return a.PodHasExclusiveCPUs(pod) })
	}
}

func cpuAssigners(injectors []Injector) []CPUAssigner {
	var out []CPUAssigner
	for _, i := range injectors {
		if a, ok := i.(CPUAssigner); ok {
			out = append(out, a)
		}
	}
	return out
}

func anyAssigner(log *slog.Logger, assigners []CPUAssigner, pod *corev1.Pod, f func(CPUAssigner) bool) bool {
	return slices.ContainsFunc(assigners, func(a CPUAssigner) (yes bool) {
		safe.Do(log, "exclusive CPUs of pod "+podspec.FullName(pod), func() { yes = f(a) })
		return yes
	})
}

// setCPUQuota sets the function by which the runtime leaves CPU limits unenforced.
func (s *Syncer) setCPUQuota(opts *runtime.RunOptions, pod *corev1.Pod) {
	ofPod := PodHasExclusiveCPUs(s.cfg.Logger, s.cfg.Injectors)
	if ofPod == nil {
		return
	}
	opts.NoCPUQuota = func(container string) bool {
		if container == "" {
			return ofPod(pod)
		}
		return s.hasExclusiveCPUs(pod, container)
	}
}

func (s *Syncer) hasExclusiveCPUs(pod *corev1.Pod, container string) bool {
	c := runtime.ContainerSpec(pod, container)
	return c != nil && anyAssigner(s.cfg.Logger, cpuAssigners(s.cfg.Injectors), pod, func(a CPUAssigner) bool { return a.HasExclusiveCPUs(pod, c) })
}

// markExclusiveCPUs returns the observed pod in which the containers with CPUs for themselves
// are marked, so that they do not seem to lack their CPU limits. observed is not changed.
func (s *Syncer) markExclusiveCPUs(pod *corev1.Pod, observed runtime.Pod) runtime.Pod {
	if len(cpuAssigners(s.cfg.Injectors)) == 0 {
		return observed
	}
	var copied bool
	for i := range observed.Containers {
		c := &observed.Containers[i]
		if c.State != runtime.Running || c.Resources == nil || c.Resources.ExclusiveCPUs || !s.hasExclusiveCPUs(pod, c.Name) {
			continue
		}
		if !copied {
			observed.Containers, copied = slices.Clone(observed.Containers), true
		}
		marked := *c.Resources
		marked.ExclusiveCPUs = true
		observed.Containers[i].Resources = &marked
	}
	return observed
}
