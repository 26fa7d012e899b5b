package containergc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

var (
	_ containergc.Sources    = (*podsource.Mux)(nil)
	_ containergc.PodWorkers = (*podworkers.Workers)(nil)
	_ containergc.PodCache   = (*podcache.Cache)(nil)
)

// fakePod is what all components say of one pod.
type fakePod struct {
	desired, known, finished, removable bool

	cached, hasSandbox, unsynced bool

	status corev1.PodStatus // that its source has
}

func (p fakePod) Pod(types.UID) (*corev1.Pod, bool) {
	return &corev1.Pod{Status: p.status}, p.desired
}

func (p fakePod) MayBeDesired(source, namespace, name string) bool {
	return p.unsynced && source == "file" && namespace == "ns" && name == "web"
}

func (p fakePod) IsKnown(types.UID) bool                   { return p.known }
func (p fakePod) IsFinished(types.UID) bool                { return p.finished }
func (p fakePod) ShouldPodContentBeRemoved(types.UID) bool { return p.removable }

func (p fakePod) Get(uid types.UID) (runtime.Pod, bool) {
	pod := runtime.Pod{UID: uid, Namespace: "ns", Name: "web"}
	if p.hasSandbox {
		pod.Sandboxes = []runtime.Sandbox{{ID: "s", Source: "file"}}
	}
	return pod, p.cached
}

// CG-2
func TestPodStates_State(t *testing.T) {
	const (
		desired    = containergc.PodDesired
		terminated = containergc.PodTerminated
		deleted    = containergc.PodDeleted
		evicted    = containergc.PodEvicted
	)
	failed := func(reason string) corev1.PodStatus { return corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason} }
	for name, tt := range map[string]struct {
		pod  fakePod
		want containergc.PodState
	}{
		"a pod that runs is desired":                                    {fakePod{desired: true, known: true, removable: true}, desired},
		"a deleted pod is desired until its worker has finished":        {fakePod{known: true, removable: true}, desired},
		"a pod whose worker has not started is desired":                 {fakePod{desired: true, removable: true}, desired},
		"a finished pod that a source has is terminated":                {fakePod{desired: true, known: true, finished: true, removable: true}, terminated},
		"a finished pod that no source has is deleted":                  {fakePod{known: true, finished: true}, deleted},
		"an unknown pod is desired before all sources have synced":      {fakePod{cached: true, hasSandbox: true}, desired},
		"an unknown pod is deleted after all sources have synced":       {fakePod{removable: true, cached: true, hasSandbox: true}, deleted},
		"a pod that the runtime does not have is deleted":               {fakePod{removable: true, hasSandbox: true, unsynced: true}, deleted},
		"a pod without a sandbox is deleted":                            {fakePod{removable: true, cached: true, unsynced: true}, deleted},
		"an unknown pod is desired while its own source has not synced": {fakePod{removable: true, cached: true, hasSandbox: true, unsynced: true}, desired},
		"a finished pod is deleted although its source has not synced":  {fakePod{known: true, finished: true, cached: true, hasSandbox: true, unsynced: true}, deleted},
		"a pod that was forgotten after it had finished is deleted":     {fakePod{finished: true}, deleted},
		"an evicted pod is desired until its worker has finished":       {fakePod{desired: true, known: true, removable: true, cached: true, hasSandbox: true, status: failed("Evicted")}, desired},
		"an evicted pod is terminated until its source knows it":        {fakePod{desired: true, known: true, finished: true, removable: true}, terminated},
		"a finished pod whose source knows its eviction is evicted":     {fakePod{desired: true, known: true, finished: true, removable: true, status: failed("Evicted")}, evicted},
		"so is a preempted one":                                         {fakePod{desired: true, known: true, finished: true, removable: true, status: failed("Preempting")}, evicted},
		"a pod that failed by itself is terminated":                     {fakePod{desired: true, known: true, finished: true, removable: true, status: failed("")}, terminated},
		"a pod that the shutdown of the node has ended is terminated":   {fakePod{desired: true, known: true, finished: true, removable: true, status: failed("Terminated")}, terminated},
		"an evicted pod that no source has any more is deleted":         {fakePod{known: true, finished: true, removable: true, status: failed("Evicted")}, deleted},
	} {
		t.Run(name, func(t *testing.T) {
			states := containergc.PodStates{Sources: tt.pod, Workers: tt.pod, Cache: tt.pod}
			assert.Equal(t, tt.want, states.State("u"))
		})
	}
}

// CG-1: exited containers of a pod that crashes again and again do not wait for the next
// periodic collection.
func TestCollector_RequestCollectionFor(t *testing.T) {
	crashed := func(n int) runtime.Pod {
		pod := runtime.Pod{UID: "u", Namespace: "ns", Name: "web"}
		for i := range n {
			pod.Containers = append(pod.Containers, runtime.Container{ID: "c" + string(rune('0'+i)), Name: "app", Attempt: uint32(i), State: runtime.Exited, Created: time.Now()})
		}
		return pod
	}
	for name, tt := range map[string]struct {
		exited int
		policy containergc.Policy
		want   int
	}{
		"nothing exceeds the policy":              {1, containergc.Policy{}, 0},
		"one exited container exceeds it":         {2, containergc.Policy{}, 1},
		"what is young is not removed":            {2, containergc.Policy{MinAge: time.Second}, 0},
		"nothing is requested if all are kept":    {9, containergc.Policy{MaxPerPodContainer: containergc.KeepAll, MaxContainers: 1}, 0},
		"a limit for the node counts for one pod": {9, containergc.Policy{MaxPerPodContainer: 20, MaxContainers: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				collections := 0
				c := collector(t, containergc.Config{
					Containers: &node{}, PodState: podStates{}.of, Policy: tt.policy, Period: time.Hour,
					Hooks: containergc.Hooks{Collected: func(containergc.Result, error) { collections++ }},
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- c.Run(ctx) }()
				c.RequestCollectionFor(crashed(tt.exited))
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, tt.want, collections)
				cancel()
				assert.NoError(t, <-done)
			})
		})
	}
}
