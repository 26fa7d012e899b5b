package status_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-2, ST-5: a pod that waits to be admitted is not over, whatever ran of it: it is
// Pending while it is stopped, and afterwards nothing of it counts as a result.
func TestGenerate_Blocked(t *testing.T) {
	blocked := &runtime.Failure{Reason: "Blocked", Message: "NoLicence: all are in use"}
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		t.Run(policy, func(t *testing.T) {
			p, now := pod("policy="+policy, "init:i", "main:c"), time.Unix(1000, 0)
			var reported corev1.PodStatus
			next := func(b *runtime.Failure, observed ...runtime.Container) corev1.PodStatus {
				now = now.Add(time.Minute)
				reported = status.Generate(p, runtime.Report{Observed: runtime.Pod{ObservedAt: now, Containers: observed}, Blocked: b}, reported, status.NodeInfo{}, now)
				return reported
			}
			done := exited("i", 0, 0)
			require.Equal(t, corev1.PodRunning, next(nil, running("c", 3), done).Phase)

			for what, observed := range map[string][]runtime.Container{
				"it runs":                     {running("c", 3), done},
				"it was stopped":              {exited("c", 3, 143), done},
				"it ended well while stopped": {exited("c", 3, 0), done},
				"nothing is left of it":       nil,
			} {
				st := next(blocked, observed...)
				assert.Equal(t, corev1.PodPending, st.Phase, what)
				assert.Equal(t, "Blocked", st.Reason, what)
				assert.Equal(t, blocked.Message, st.Message, what)
			}
			st := next(blocked)
			for _, cs := range []corev1.ContainerStatus{st.InitContainerStatuses[0], st.ContainerStatuses[0]} {
				if cs.Name == "i" && policy != "Always" {
					require.NotNil(t, cs.State.Terminated, "it was reported before")
					assert.False(t, cs.Ready)
					continue
				}
				require.NotNil(t, cs.State.Waiting, cs.Name)
				assert.Equal(t, "Blocked", cs.State.Waiting.Reason)
				assert.Nil(t, cs.LastTerminationState.Terminated)
			}
			assert.EqualValues(t, 3, st.ContainerStatuses[0].RestartCount)
			assert.Equal(t, st, next(blocked), "and it stays like that")

			st = next(nil)
			assert.Equal(t, corev1.PodPending, st.Phase)
			assert.Empty(t, st.Reason)
			assert.Equal(t, corev1.PodRunning, next(nil, running("c", 4), exited("i", 1, 0)).Phase)
		})
	}
}

// An API server rejects a status in which a container has left the state Terminated although it is done by
// exit code and policy. One that was reported in it stays in it while its pod is blocked and while it runs
// once more, until there is a new result.
func TestGenerate_KeepsReportedEnds(t *testing.T) {
	blocked := &runtime.Failure{Reason: "Blocked", Message: "NoLicence: all are in use"}
	for policy, codes := range map[string][]int32{"Never": {0, 1}, "OnFailure": {0}, "Always": nil} {
		for _, code := range []int32{0, 1} {
			keeps := slices.Contains(codes, code)
			t.Run(fmt.Sprintf("%s, exit code %d", policy, code), func(t *testing.T) {
				p, now := pod("policy="+policy, "init:i", "main:c", "main:d"), time.Unix(1000, 0)
				var reported corev1.PodStatus
				next := func(b *runtime.Failure, observed ...runtime.Container) corev1.PodStatus {
					now = now.Add(time.Minute)
					reported = status.Generate(p, runtime.Report{Observed: runtime.Pod{ObservedAt: now, Containers: observed}, Blocked: b}, reported, status.NodeInfo{}, now)
					return reported
				}
				first := next(nil, running("c", 0), exited("d", 0, code), exited("i", 0, 0)).ContainerStatuses[1]
				require.NotNil(t, first.State.Terminated)
				for step, st := range []func() corev1.PodStatus{
					func() corev1.PodStatus {
						return next(blocked, running("c", 0), exited("d", 0, code), exited("i", 0, 0))
					},
					func() corev1.PodStatus { return next(blocked) },
					func() corev1.PodStatus { return next(nil) },
					func() corev1.PodStatus { return next(nil, running("i", 1)) },
					func() corev1.PodStatus { return next(nil, exited("i", 1, 0), running("c", 1), running("d", 1)) },
				} {
					st := st()
					if policy != "Always" {
						assert.NotNil(t, st.InitContainerStatuses[0].State.Terminated, step)
					}
					d := st.ContainerStatuses[1]
					if keeps {
						assert.Equal(t, []any{first.State, first.ContainerID}, []any{d.State, d.ContainerID}, step)
						assert.False(t, podspec.IsTerminalPhase(st.Phase), step)
					} else if step > 0 {
						assert.Nil(t, d.State.Terminated, step)
					}
				}
				assert.Equal(t, corev1.PodRunning, reported.Phase)
				d := next(nil, exited("i", 1, 0), running("c", 1), exited("d", 1, 3)).ContainerStatuses[1]
				require.NotNil(t, d.State.Terminated)
				assert.EqualValues(t, 3, d.State.Terminated.ExitCode, "the result of the new attempt")
				assert.EqualValues(t, 1, d.RestartCount)
			})
		}
	}
}

// ST-5: a pod that was over before it was asked about stays so.
func TestGenerate_BlockedAfterItsEnd(t *testing.T) {
	p, now := pod("policy=Never", "main:c"), time.Unix(1000, 0)
	over := status.Generate(p, runtime.Report{Observed: runtime.Pod{ObservedAt: now, Containers: []runtime.Container{exited("c", 0, 0)}}}, corev1.PodStatus{}, status.NodeInfo{}, now)
	require.Equal(t, corev1.PodSucceeded, over.Phase)
	st := status.Generate(p, runtime.Report{Observed: runtime.Pod{ObservedAt: now}, Blocked: &runtime.Failure{Message: "no"}}, over, status.NodeInfo{}, now)
	assert.Equal(t, corev1.PodSucceeded, st.Phase)
}

// An API server rejects each later status of a pod in which a container has left the state Terminated although it
// is done by exit code and policy. A container that was stopped because its pod has to wait is never reported in it.
func TestGenerate_BlockedIsNoEnd(t *testing.T) {
	blocked := &runtime.Failure{Reason: "Blocked", Message: "NoLicence: all are in use"}
	for policy, code := range map[string]int32{"Never": 143, "OnFailure": 0} {
		t.Run(policy, func(t *testing.T) {
			p, now := pod("policy="+policy, "main:c", "main:d"), time.Unix(1000, 0)
			var reported corev1.PodStatus
			next := func(b *runtime.Failure, observed ...runtime.Container) []corev1.ContainerStatus {
				now = now.Add(time.Minute)
				reported = status.Generate(p, runtime.Report{Observed: runtime.Pod{ObservedAt: now, Containers: observed}, Blocked: b}, reported, status.NodeInfo{}, now)
				return reported.ContainerStatuses
			}
			done := exited("d", 0, 0)
			next(nil, running("c", 0), done)
			next(blocked, running("c", 0), done)
			st := next(blocked, exited("c", 0, code), done)
			require.NotNil(t, st[0].State.Waiting)
			assert.Equal(t, "Blocked", st[0].State.Waiting.Reason)
			assert.False(t, st[0].Ready)
			assert.NotNil(t, st[1].State.Terminated, "it was reported before")
			assert.NotNil(t, next(blocked)[0].State.Waiting)
			assert.NotNil(t, next(nil)[0].State.Waiting)
			assert.NotNil(t, next(nil, running("c", 1))[0].State.Running)
			next(blocked, running("c", 1))
			st = status.Generate(p, runtime.Report{
				Observed: runtime.Pod{ObservedAt: now, Containers: []runtime.Container{exited("c", 1, code)}}, Blocked: blocked, Termination: &runtime.Termination{},
			}, reported, status.NodeInfo{}, now).ContainerStatuses
			assert.NotNil(t, st[0].State.Terminated, "it does not start again")
		})
	}
}
