package podsync_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// PW-6: a call that the agent cancels itself is not a failure of the pod: no event, no
// status and no admission message mentions the cancelled context.
func TestSync_CancellationIsNotReported(t *testing.T) {
	cut := fmt.Errorf("the call: %w", context.Canceled)
	for _, step := range []string{"admit", "cgroup", "mount", "apply", "kill", "release", "object"} {
		t.Run(step, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{}}
			cfg := newConfig(t, n)
			ctx, cancel := context.WithCancel(t.Context())
			n.enter = func(s string) {
				if s == step {
					cancel()
				}
			}
			n.fail[step] = cut
			p := newTestPod()
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
			cfg.Objects = cancellingObjects{n}
			cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) {
				return podspec.AdmitResult{Admitted: true}, n.step("admit")
			})}
			s := newSyncer(t, cfg)
			do := func() error {
				switch step {
				case "kill":
					return s.Terminate(ctx, p, runtime.Pod{}, runtime.Termination{})
				case "release":
					n.fail["unmount"], n.fail["release"] = cut, nil
					cancel()
					return s.Finish(ctx, p, runtime.Termination{})
				}
				_, err := s.Sync(ctx, p, runtime.Pod{})
				return err
			}
			if step == "apply" {
				n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "CreateContainerError", Message: cut.Error(), Err: cut}}}
			}
			if err := do(); step != "object" {
				require.ErrorIs(t, err, context.Canceled)
			}
			assert.Empty(t, n.events)
			for _, r := range n.reports {
				assert.Empty(t, r.Failures)
				assert.Nil(t, r.Blocked)
			}
		})
	}
}

type cancellingObjects struct{ *fakeNode }

func (o cancellingObjects) Object(context.Context, podspec.Ref) (podspec.Object, error) {
	return podspec.Object{}, o.step("object")
}
