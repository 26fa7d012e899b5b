package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// The first inspection after the start of a whole pod needs no lists, and finds what they would have.
func TestAStartedPodIsInspectedWithoutLists(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Pod){
		"one container": func(*corev1.Pod) {},
		"three":         func(p *corev1.Pod) { p.Spec.Containers = onePod("main", "second", "third").Spec.Containers },
		"host network":  func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"labels": func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{"app": "web"}, map[string]string{"a": "b"}
		},
		"a grace period": func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(7)) },
	} {
		t.Run(name, func(t *testing.T) {
			f, pod := newFake(), onePod("main")
			edit(pod)
			f.addImage(busybox)
			c := f.client(t, Config{})
			require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{LogDir: "/logs"}).Failures)
			got, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			assert.Zero(t, f.count("ListPodSandbox")+f.count("ListContainers"))
			assert.Equal(t, len(pod.Spec.Containers), f.count("ContainerStatus"))

			asked, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			next, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			assert.Equal(t, 2, f.count("ListContainers"), "of the other client, and of the second inspection")
			got.ObservedAt, asked.ObservedAt, next.ObservedAt = time.Time{}, time.Time{}, time.Time{}
			assert.Equal(t, asked, got)
			assert.Equal(t, asked, next)
		})
	}
}

// A container that has ended since is reported so, as with lists.
func TestAStartedPodThatHasEndedSince(t *testing.T) {
	f, pod := newFake(), onePod("main")
	f.addImage(busybox)
	c := f.client(t, Config{})
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	f.mu.Lock()
	for id := range f.containers {
		f.exit(id, 3)
	}
	f.mu.Unlock()
	got, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	assert.Zero(t, f.count("ListContainers"))
	require.Len(t, got.Containers, 1)
	assert.Equal(t, runtime.Exited, got.Containers[0].State)
	assert.Equal(t, int32(3), got.Containers[0].ExitCode)
}

// Lists are asked for where there may be more than what was started, or less.
func TestAStartedPodThatNeedsLists(t *testing.T) {
	apply := func(c *Client, pod *corev1.Pod, plan []runtime.Action) runtime.ApplyResult {
		return c.Apply(context.Background(), pod, plan, runtime.RunOptions{})
	}
	failEach := func(f *fake, rpc string) {
		f.setBefore(func(_ context.Context, called string, _ any) error {
			if called == rpc {
				return status.Error(codes.Internal, "failed")
			}
			return nil
		})
	}
	loseFirst := func(f *fake, rpc string) {
		lost := false
		f.after = func(called string, _ any) error {
			if called == rpc && !lost {
				lost = true
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			return nil
		}
	}
	for name, tc := range map[string]struct {
		before func(f *fake, c *Client, pod *corev1.Pod)
		plan   func(plan []runtime.Action) []runtime.Action
		after  func(f *fake, c *Client, pod *corev1.Pod)
		fails  bool
	}{
		"not the first sandbox": {plan: func(plan []runtime.Action) []runtime.Action {
			plan[0].Attempt = 1
			return plan
		}},
		"something was removed": {plan: func(plan []runtime.Action) []runtime.Action {
			return append([]runtime.Action{{Type: runtime.RemoveContainer, ID: "former", Container: "main"}}, plan...)
		}},
		"a container failed": {
			before: func(f *fake, _ *Client, _ *corev1.Pod) { failEach(f, "StartContainer") },
			after:  func(f *fake, _ *Client, _ *corev1.Pod) { f.setBefore(nil) }, fails: true,
		},
		"the sandbox existed": {
			before: func(f *fake, c *Client, pod *corev1.Pod) {
				loseFirst(f, "RunPodSandbox")
				apply(c, pod, startAll(pod))
				f.took()
			},
		},
		"the container existed": {
			before: func(f *fake, _ *Client, _ *corev1.Pod) { loseFirst(f, "CreateContainer") }, fails: true,
			after: func(f *fake, c *Client, pod *corev1.Pod) {
				assert.Empty(t, apply(c, pod, startAll(pod)[1:]).Failures)
				f.took()
			},
		},
		"it was changed since": {after: func(f *fake, c *Client, pod *corev1.Pod) {
			for id := range f.containers {
				c.facts.forgetContainer(pod.UID, id)
			}
		}},
		"some time ago":            {after: func(*fake, *Client, *corev1.Pod) { time.Sleep(startedFresh) }},
		"it was inspected":         {after: func(_ *fake, c *Client, pod *corev1.Pod) { _, _ = c.Pod(context.Background(), pod.UID) }},
		"something of it has died": {after: func(_ *fake, c *Client, pod *corev1.Pod) { c.facts.needLists(pod.UID) }},
		"it was killed": {after: func(_ *fake, c *Client, pod *corev1.Pod) {
			_ = c.Kill(context.Background(), pod, runtime.Pod{UID: pod.UID}, runtime.Termination{})
		}},
		"another Apply": {after: func(_ *fake, c *Client, pod *corev1.Pod) {
			apply(c, pod, []runtime.Action{{Type: runtime.Wait, Container: "main"}})
		}},
		"the container is missing": {after: func(f *fake, _ *Client, _ *corev1.Pod) { clear(f.containers) }},
		"a status call fails": {after: func(f *fake, _ *Client, _ *corev1.Pod) {
			failed := false
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				if rpc == "ContainerStatus" && !failed {
					failed = true
					return status.Error(codes.Internal, "failed")
				}
				return nil
			})
		}},
		"an event says that the sandbox is not ready": {after: func(f *fake, c *Client, pod *corev1.Pod) {
			e := f.event()
			e.PodSandboxStatus.State = v1.PodSandboxState_SANDBOX_NOTREADY
			c.facts.addEvent(pod.UID, podEvent{received: time.Now(), happened: time.Now().Round(0), sandbox: e.GetPodSandboxStatus()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pod := newFake(), onePod("main")
				f.addImage(busybox)
				c := f.client(t, Config{})
				if tc.before != nil {
					tc.before(f, c, pod)
				}
				plan := startAll(pod)
				if tc.plan != nil {
					plan = tc.plan(plan)
				}
				if failures := apply(c, pod, plan).Failures; !tc.fails {
					require.Empty(t, failures)
				}
				if tc.after != nil {
					tc.after(f, c, pod)
				}
				before := f.count("ListContainers")
				got, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Equal(t, 1, f.count("ListContainers")-before)
				asked, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				got.ObservedAt, asked.ObservedAt = time.Time{}, time.Time{}
				assert.Equal(t, asked, got)
			})
		})
	}
}

// An event of an end is enough for the next inspection to use lists, also if it comes before all has started.
func TestAnEventOfAnEndAsksForLists(t *testing.T) {
	for name, whileItStarts := range map[string]bool{"before all has started": true, "after that": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pod := newFake(), onePod("main")
				end := func(e *v1.ContainerEventResponse) {
					e.ContainerEventType = v1.ContainerEventType_CONTAINER_STOPPED_EVENT
				}
				c := startEventful(t, f, pod, func(e *v1.ContainerEventResponse) {
					if whileItStarts && len(e.GetContainersStatuses()) > 0 {
						end(e)
					}
				})
				assert.Equal(t, whileItStarts, c.facts.of(pod.UID).started == nil)
				e := f.event()
				end(e)
				f.events <- e
				synctest.Wait()
				assert.Nil(t, c.facts.of(pod.UID).started)
				_, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				assert.Equal(t, 1, f.count("ListContainers"))
				assert.False(t, c.facts.of(pod.UID).needsLists, "it is of no more use")
			})
		})
	}
}
