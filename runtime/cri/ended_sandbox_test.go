package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// endedPod is a pod whose containers and sandbox have ended without a Client.
func endedPod(t *testing.T, f *fake, c *Client) runtime.Pod {
	t.Helper()
	f.addImage(busybox)
	p := startPod(t, c, onePod("main"))
	f.mu.Lock()
	f.sandboxes[p.Sandboxes[0].ID].State = v1.PodSandboxState_SANDBOX_NOTREADY
	f.exit(p.Containers[0].ID, 137)
	f.mu.Unlock()
	p, err := c.Pod(t.Context(), p.UID)
	require.NoError(t, err)
	f.took()
	return p
}

// answer has a call answered with an error.
func (f *fake) answer(rpc string, code codes.Code) {
	f.setBefore(func(_ context.Context, called string, _ any) error {
		if called == rpc {
			return status.Error(code, "netns is not closed")
		}
		return nil
	})
}

// A sandbox is stopped before it is removed, once: the runtime gives back addresses when it
// stops one, and not when it ends.
func TestClient_StopsSandboxesBeforeRemoval(t *testing.T) {
	const stop, remove = "StopPodSandbox", "RemovePodSandbox"
	for name, tt := range map[string]struct {
		do   func(t *testing.T, f *fake, c *Client, p runtime.Pod) error
		want []string
	}{
		"one that has ended": {func(t *testing.T, _ *fake, c *Client, p runtime.Pod) error {
			return c.RemoveSandbox(t.Context(), p.Sandboxes[0].ID)
		}, []string{stop, remove}},
		"with its pod": {func(t *testing.T, _ *fake, c *Client, p runtime.Pod) error {
			return c.Remove(t.Context(), p)
		}, []string{stop, remove}},
		"once, if Kill has stopped it": {func(t *testing.T, _ *fake, c *Client, p runtime.Pod) error {
			for range 2 {
				require.NoError(t, c.Kill(t.Context(), onePod("main"), p, runtime.Termination{}))
			}
			return c.Remove(t.Context(), p)
		}, []string{stop, remove}},
		"again by another process": {func(t *testing.T, f *fake, c *Client, p runtime.Pod) error {
			require.NoError(t, c.Kill(t.Context(), onePod("main"), p, runtime.Termination{}))
			other := f.client(t, Config{})
			_, err := other.Pods(t.Context())
			require.NoError(t, err)
			return other.Remove(t.Context(), p)
		}, []string{stop, stop, remove}},
		"one that cannot be stopped": {func(t *testing.T, f *fake, c *Client, p runtime.Pod) error {
			f.answer(stop, codes.Unknown)
			require.NoError(t, c.Kill(t.Context(), onePod("main"), p, runtime.Termination{}))
			return c.Remove(t.Context(), p)
		}, []string{stop, stop, remove}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			p := endedPod(t, f, c)
			require.NoError(t, tt.do(t, f, c, p))
			var calls []string
			for _, rpc := range f.took() {
				if rpc == stop || rpc == remove {
					calls = append(calls, rpc)
				}
			}
			assert.Equal(t, tt.want, calls)
			assert.Empty(t, f.sandboxes)
		})
	}
}

// A normal deletion stops the sandbox once.
func TestClient_StopsSandboxOnceInDeletion(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	p := startPod(t, c, onePod("main"))
	require.NoError(t, c.Remove(t.Context(), killPod(t, c, p.UID)))
	assert.Equal(t, 1, f.count("StopPodSandbox"))
	assert.Equal(t, 1, f.count("RemovePodSandbox"))
	assert.Empty(t, c.stopped.ids)
}

// A sandbox that has ended and cannot be stopped does not keep its pod from ending. Without an
// answer it may still be stopped.
func TestKill_EndedSandbox(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.Unknown:           `level=WARN msg="ended sandbox not stopped" pod=shop/web podUID=uid-1 sandboxID=sb-1 err="StopPodSandbox sb-1: netns is not closed (Unknown)"` + "\n",
		codes.Unavailable:       "",
		codes.DeadlineExceeded:  "",
		codes.ResourceExhausted: "",
	} {
		t.Run(code.String(), func(t *testing.T) {
			var log bytes.Buffer
			f := newFake()
			c := f.client(t, Config{Logger: logtest.NewLogger(&log, slog.LevelWarn)})
			p := endedPod(t, f, c)
			f.answer("StopPodSandbox", code)
			err := c.Kill(t.Context(), onePod("main"), p, runtime.Termination{})
			assert.Equal(t, want, log.String())
			if want == "" {
				assert.ErrorContains(t, err, "StopPodSandbox "+p.Sandboxes[0].ID)
			} else {
				assert.NoError(t, err)
			}
		})
	}
}

// PW-9: what the runtime says it cannot remove of a pod that does not run may be left to
// garbage collection. What it has not answered is tried again, and so is what may run.
func TestRemove_MayBeLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		rpc   string
		code  codes.Code
		ready bool
		want  bool
	}{
		"it cannot":              {"RemovePodSandbox", codes.Unknown, false, true},
		"unavailable":            {"RemovePodSandbox", codes.Unavailable, false, false},
		"no answer":              {"RemovePodSandbox", codes.DeadlineExceeded, false, false},
		"overloaded":             {"RemovePodSandbox", codes.ResourceExhausted, false, false},
		"a sandbox is ready":     {"RemovePodSandbox", codes.Unknown, true, false},
		"unavailable for a stop": {"StopPodSandbox", codes.Unavailable, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			p := endedPod(t, f, c)
			if tt.ready {
				p.Sandboxes[0].State = runtime.SandboxReady
			}
			f.answer(tt.rpc, tt.code)
			err := c.Remove(t.Context(), p)
			require.ErrorContains(t, err, tt.rpc+" "+p.Sandboxes[0].ID)
			assert.Equal(t, tt.want, errors.Is(err, runtime.ErrNotRemoved))
			assert.Len(t, f.sandboxes, 1)
		})
	}
}

// A container without its sandbox counts too, and one call without an answer is enough.
func TestRemove_MayBeLeftForAllOnly(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	p := endedPod(t, f, c)
	p.Containers[0].SandboxID = "lost"
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		switch rpc {
		case "RemoveContainer":
			return status.Error(codes.Unavailable, "busy")
		case "RemovePodSandbox":
			return status.Error(codes.Unknown, "netns is not closed")
		}
		return nil
	})
	err := c.Remove(t.Context(), p)
	require.ErrorContains(t, err, "netns is not closed")
	require.ErrorIs(t, err, runtime.ErrUnavailable)
	assert.NotErrorIs(t, err, runtime.ErrNotRemoved)
}

// What others remove of what this Client has stopped does not pile up.
func TestIDSet_Bounded(t *testing.T) {
	var s idSet
	for i := range maxIDs + 10 {
		s.add(fmt.Sprint(i))
		require.True(t, s.has(fmt.Sprint(i)))
	}
	assert.Len(t, s.ids, maxIDs)
}
