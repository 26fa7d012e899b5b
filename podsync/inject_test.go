package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// injector injects a variable and records its calls.
type injector struct {
	name, value string
	err         error
	trace       []string
	order       *[]string // shared by injectors; may be nil
}

func (i *injector) called() {
	if i.order != nil {
		*i.order = append(*i.order, i.name)
	}
}

func (i *injector) Inject(_ context.Context, _ *corev1.Pod, c *corev1.Container, running bool) (runtime.Injection, error) {
	i.called()
	if running {
		i.trace = append(i.trace, "inspect "+c.Name)
	} else {
		i.trace = append(i.trace, "inject "+c.Name)
	}
	if i.value == "panic" {
		panic("bug of a vendor")
	}
	return runtime.Injection{Env: map[string]string{i.name: i.value}}, i.err
}

func (i *injector) PreStart(_ context.Context, _ *corev1.Pod, container string) error {
	i.called()
	i.trace = append(i.trace, "prestart "+container)
	return i.err
}

func (i *injector) Release(_ context.Context, uid types.UID) error {
	i.trace = append(i.trace, "release "+string(uid))
	return i.err
}

// podWith is the test pod as observed, with a container that got the injection.
func podWith(i runtime.Injection) runtime.Pod {
	spec := &newTestPod().Spec.Containers[0]
	return runtime.Pod{
		UID: "uid-1", Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}},
		Containers: []runtime.Container{{Name: spec.Name, ID: "c", SandboxID: "s", State: runtime.Running, Hash: runtime.HashWithInjection(spec, i)}},
	}
}

func TestSync_InjectsIntoNewContainers(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	first, second := &injector{name: "A", value: "1"}, &injector{name: "B", value: "2"}
	var order, hooked []string
	first.order, second.order = &order, &order
	cfg.Injectors = []podsync.Injector{first, second}
	cfg.Hooks.Injected = func(pod *corev1.Pod, container string, injection runtime.Injection, err error) {
		hooked = append(hooked, fmt.Sprint(pod.Name, " ", container, " ", injection.Env, " ", err))
	}
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.Empty(t, first.trace, "nothing is set aside before the container is created")
	c := &newTestPod().Spec.Containers[0]
	got, err := n.opts.Inject(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1", "B": "2"}, got.Env)
	require.NoError(t, n.opts.PreStart(t.Context(), c.Name))
	require.Equal(t, []string{"inject " + c.Name, "prestart " + c.Name}, second.trace)
	require.Equal(t, []string{"A", "B", "A", "B"}, order, "in the order of the options")
	require.Equal(t, []string{"web main map[A:1 B:2] <nil>"}, hooked)

	second.name = "A"
	_, err = n.opts.Inject(t.Context(), c)
	require.ErrorContains(t, err, "two different injections of the variable A")
	second.err = errors.New("no device")
	_, err = n.opts.Inject(t.Context(), c)
	require.ErrorIs(t, err, second.err)
	require.Equal(t, "web main map[] no device", hooked[2])
	require.ErrorIs(t, n.opts.PreStart(t.Context(), c.Name), second.err)
	second.value = "panic"
	_, err = n.opts.Inject(t.Context(), c)
	require.ErrorContains(t, err, "bug of a vendor")
}

func TestSync_ReplacesContainersWithAnotherInjection(t *testing.T) {
	for _, tc := range []struct {
		name     string
		value    string
		err      error
		replaced bool
	}{
		{"the same", "1", nil, false},
		{"another", "2", nil, true},
		{"unknown", "2", errors.New("state lost"), false},
		{"panic", "panic", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodRunning}
			cfg := newConfig(t, n)
			i := &injector{name: "A", value: tc.value, err: tc.err}
			cfg.Injectors = []podsync.Injector{i}
			_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), podWith(runtime.Injection{Env: map[string]string{"A": "1"}}))
			require.NoError(t, err)
			require.Equal(t, []string{"inspect " + newTestPod().Spec.Containers[0].Name}, i.trace)
			if tc.replaced {
				require.Contains(t, n.trace, "apply")
			} else {
				require.NotContains(t, n.trace, "apply")
			}
		})
	}
}

// What was set aside for a pod is released when its containers have ended, and again until
// that succeeds.
func TestFinish_ReleasesInjections(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := newConfig(t, n)
	i := &injector{err: errors.New("disk full")}
	cfg.Injectors = []podsync.Injector{i}
	s := newSyncer(t, cfg)
	require.ErrorIs(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{}), i.err)
	i.err = nil
	require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{}))
	require.NoError(t, s.CleanupOrphan(t.Context(), "uid-7"))
	require.Equal(t, []string{"release uid-1", "release uid-1", "release uid-7"}, i.trace)
}

// provider is an injector of devices with a health.
type provider struct {
	injector

	statuses map[string][]corev1.ResourceStatus // by container
	listener func(types.UID)
}

func (p *provider) Capacity() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceName(p.name): resource.MustParse("2")}
}

func (p *provider) Allocatable() corev1.ResourceList {
	if p.value == "panic" {
		panic("bug of a vendor")
	}
	return corev1.ResourceList{corev1.ResourceName(p.name): resource.MustParse("1")}
}

func (p *provider) NotifyHealth(f func(types.UID)) { p.listener = f }

func (p *provider) ResourceStatuses(_ types.UID, container string) []corev1.ResourceStatus {
	if p.value == "panic" {
		panic("bug of a vendor")
	}
	return p.statuses[container]
}

// reporter is an injector of what has a health, but is no resource of the node.
type reporter struct {
	injector

	listener func(types.UID)
}

func (r *reporter) NotifyHealth(f func(types.UID)) { r.listener = f }

func (r *reporter) ResourceHealth(pod *corev1.Pod, container *corev1.Container) []corev1.ResourceStatus {
	if r.value == "panic" {
		panic("bug of a vendor")
	}
	return []corev1.ResourceStatus{{Name: corev1.ResourceName(r.name + ":" + string(pod.UID) + "/" + container.Name)}}
}

func TestSync_ReportsHealthOfResources(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := newConfig(t, n)
	name := newTestPod().Spec.Containers[0].Name
	gpu, nic := corev1.ResourceStatus{Name: "v.example/gpu"}, corev1.ResourceStatus{Name: "v.example/nic"}
	cfg.Injectors = []podsync.Injector{
		&provider{statuses: map[string][]corev1.ResourceStatus{name: {gpu}}},
		&provider{injector: injector{value: "panic"}},
		&injector{},
		&reporter{injector: injector{value: "panic"}},
		&reporter{injector: injector{name: "claim"}},
		&provider{statuses: map[string][]corev1.ResourceStatus{name: {nic}, "another": {gpu}}},
	}
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.NoError(t, s.Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{}))
	require.NotEmpty(t, n.reports)
	claim := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + string(newTestPod().UID) + "/" + name)}
	for _, r := range n.reports {
		require.Equal(t, runtime.ResourceStatuses{name: {gpu, claim, nic}}, r.Resources)
	}
}

func TestProvidedResources(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	capacity, allocatable := podsync.ProvidedResources(log, []podsync.Injector{&injector{}})
	require.Nil(t, capacity)
	require.Nil(t, allocatable)
	broken := &provider{injector: injector{name: "v.example/nic", value: "panic"}}
	claims := &reporter{}
	injectors := []podsync.Injector{&injector{}, &provider{injector: injector{name: "v.example/gpu"}}, broken, claims}
	capacity, allocatable = podsync.ProvidedResources(log, injectors)
	require.Equal(t, corev1.ResourceList{"v.example/gpu": resource.MustParse("2"), "v.example/nic": resource.MustParse("2")}, capacity())
	require.Equal(t, corev1.ResourceList{"v.example/gpu": resource.MustParse("1")}, allocatable(), "one that panics has nothing")
	var changed []types.UID
	podsync.NotifyHealth(injectors, func(uid types.UID) { changed = append(changed, uid) })
	broken.listener("u")
	claims.listener("v")
	require.Equal(t, []types.UID{"u", "v"}, changed)
}

// supporter is an injector that implements one field of pods.
type supporter struct{ injector }

func (*supporter) SupportsField(field string) bool { return field == "spec.resourceClaims" }

func TestSupported(t *testing.T) {
	list := func(*corev1.Pod) field.ErrorList {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "resourceClaims"), ""), field.Forbidden(field.NewPath("spec", "other"), "")}
	}
	require.Len(t, podsync.Supported([]podsync.Injector{&injector{}}, list)(nil), 2)
	left := podsync.Supported([]podsync.Injector{&injector{}, &supporter{}}, list)(nil)
	require.Len(t, left, 1)
	require.Equal(t, "spec.other", left[0].Field)
}
