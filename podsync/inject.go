package podsync

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// currentInjections returns the hashes of what the running containers of a pod would get
// now. Those of other containers are not known before they are created.
func (s *Syncer) currentInjections(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) map[string]string {
	if len(s.cfg.Injectors) == 0 {
		return nil
	}
	running := map[string]bool{}
	for i := range observed.Containers {
		if c := &observed.Containers[i]; c.State == runtime.Running {
			running[c.Name] = true
		}
	}
	hashes := map[string]string{}
	for c := range podspec.Containers(pod) {
		hashes[c.Name] = runtime.UnknownInjection
		if !running[c.Name] {
			continue
		}
		injection, err := s.inject(ctx, pod, c, true)
		if err != nil {
			s.cfg.Logger.Debug("injection of a running container unknown", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
			continue
		}
		hashes[c.Name] = injection.Hash()
	}
	return hashes
}

// inject returns what all Injectors give a container together.
func (s *Syncer) inject(ctx context.Context, pod *corev1.Pod, c *corev1.Container, running bool) (runtime.Injection, error) {
	var total runtime.Injection
	for _, i := range s.cfg.Injectors {
		if err := safe.Call(s.cfg.Logger, "inject into pod "+podspec.FullName(pod), func() error {
			injection, err := i.Inject(ctx, pod, c, running)
			if err == nil {
				total, err = total.Merge(injection)
			}
			return err
		}); err != nil {
			return runtime.Injection{}, err
		}
	}
	return total, nil
}

// setInjection sets the functions that the runtime calls for each container it creates.
func (s *Syncer) setInjection(opts *runtime.RunOptions, pod *corev1.Pod) {
	if len(s.cfg.Injectors) == 0 {
		return
	}
	opts.Inject = func(ctx context.Context, c *corev1.Container) (runtime.Injection, error) {
		injection, err := s.inject(ctx, pod, c, false)
		if s.cfg.Hooks.Injected != nil {
			s.cfg.Hooks.Injected(pod, c.Name, injection, err)
		}
		return injection, err
	}
	opts.PreStart = func(ctx context.Context, container string) error {
		for _, i := range s.cfg.Injectors {
			starter, ok := i.(PreStarter)
			if !ok {
				continue
			}
			if err := safe.Call(s.cfg.Logger, "prepare the start of a container of pod "+podspec.FullName(pod), func() error {
				return starter.PreStart(ctx, pod, container)
			}); err != nil {
				return err
			}
		}
		return nil
	}
}

// resourceStatuses returns the health of the resources of a pod by container. Nil means
// that there are none.
func (s *Syncer) resourceStatuses(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	var out map[string][]corev1.ResourceStatus
	add := func(statuses func(*corev1.Container) []corev1.ResourceStatus) {
		for c := range podspec.Containers(pod) {
			safe.Do(s.cfg.Logger, "health of resources of pod "+podspec.FullName(pod), func() {
				if list := statuses(c); len(list) > 0 {
					if out == nil {
						out = map[string][]corev1.ResourceStatus{}
					}
					out[c.Name] = append(out[c.Name], list...)
				}
			})
		}
	}
	for _, i := range s.cfg.Injectors {
		if p, ok := i.(ResourceProvider); ok {
			add(func(c *corev1.Container) []corev1.ResourceStatus { return p.ResourceStatuses(pod.UID, c.Name) })
		}
		if r, ok := i.(HealthReporter); ok {
			add(func(c *corev1.Container) []corev1.ResourceStatus { return r.ResourceHealth(pod, c) })
		}
	}
	return out
}

func resourceProviders(injectors []Injector) []ResourceProvider {
	var out []ResourceProvider
	for _, i := range injectors {
		if p, ok := i.(ResourceProvider); ok {
			out = append(out, p)
		}
	}
	return out
}

// Supported returns a function that leaves out of a list of unsupported fields those that the
// injectors implement.
func Supported(injectors []Injector, list func(*corev1.Pod) field.ErrorList) func(*corev1.Pod) field.ErrorList {
	var supporters []FieldSupporter
	for _, i := range injectors {
		if s, ok := i.(FieldSupporter); ok {
			supporters = append(supporters, s)
		}
	}
	if len(supporters) == 0 {
		return list
	}
	return func(pod *corev1.Pod) field.ErrorList {
		return slices.DeleteFunc(list(pod), func(e *field.Error) bool {
			return slices.ContainsFunc(supporters, func(s FieldSupporter) bool { return s.SupportsField(e.Field) })
		})
	}
}

// ProvidedResources returns what all ResourceProviders among the injectors provide
// together. A nil function means that there are none.
func ProvidedResources(log *slog.Logger, injectors []Injector) (capacity, allocatable func() corev1.ResourceList) {
	providers := resourceProviders(injectors)
	if len(providers) == 0 {
		return nil, nil
	}
	total := func(list func(ResourceProvider) corev1.ResourceList) func() corev1.ResourceList {
		return func() corev1.ResourceList {
			sum := corev1.ResourceList{}
			for _, p := range providers {
				safe.Do(log, "resources of an injector", func() { maps.Copy(sum, list(p)) })
			}
			return sum
		}
	}
	return total(ResourceProvider.Capacity), total(ResourceProvider.Allocatable)
}

// NotifyHealth makes all ResourceProviders and HealthReporters among the injectors call f.
func NotifyHealth(injectors []Injector, f func(uid types.UID)) {
	for _, i := range injectors {
		if p, ok := i.(interface{ NotifyHealth(f func(uid types.UID)) }); ok { // once for one that is both
			p.NotifyHealth(f)
		}
	}
}

// hasUnreleased reports whether the pod has something that is to be released before it is reported as
// ended.
func (s *Syncer) hasUnreleased(pod *corev1.Pod) (has bool) {
	for _, i := range s.cfg.Injectors {
		if h, ok := i.(EarlyReleaser); ok {
			safe.Do(s.cfg.Logger, "what pod "+podspec.FullName(pod)+" has", func() { has = has || h.HasUnreleased(pod) })
		}
	}
	return has
}

// releaseInjections frees what the Injectors have set aside for a pod.
func (s *Syncer) releaseInjections(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, i := range s.cfg.Injectors {
		if r, ok := i.(Releaser); ok {
			errs = append(errs, safe.Call(s.cfg.Logger, "release what was injected", func() error { return r.Release(ctx, uid) }))
		}
	}
	return errors.Join(errs...)
}
