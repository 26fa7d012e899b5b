package csi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// storm makes calls of a driver fail at random, before and after they had their effect, and
// sometimes lies about them.
type storm struct {
	mu     sync.Mutex
	random *rand.Rand
	faults map[string]int // by method and kind
	limit  int            // calls until the driver hangs; 0: it does not
	hung   chan struct{}  // closed when it does
}

// faultyMethods are those that fail.
func faultyMethods() []string {
	return []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
}

func (s *storm) fault(method, kind string, outOf int, err error) error {
	if !slices.Contains(faultyMethods(), method) || s.faults[method+" "+kind] > 0 && s.random.IntN(outOf) > 0 {
		return nil // the first call always fails
	}
	s.faults[method+" "+kind]++
	return err
}

func (s *storm) before(ctx context.Context, method string, _ any) error {
	s.mu.Lock()
	hangs := false
	if s.limit > 0 && slices.Contains(faultyMethods(), method) {
		s.limit--
		if hangs = s.limit == 0; hangs {
			close(s.hung)
		}
	}
	err := s.fault(method, "fails", 6, status.Error(codes.Unavailable, "unavailable"))
	if method == "NodePublishVolume" || method == "NodeUnpublishVolume" && os.Geteuid() == 0 {
		err = errors.Join(err, s.fault(method, "lies", 20, errors.ErrUnsupported))
	}
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	return err
}

func (s *storm) after(_ context.Context, method string, _ any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault(method, "loses its answer", 6, status.Error(codes.Internal, "out of memory"))
}

// VD-2: twenty pods are made, moved, expanded and deleted, while calls fail before and after they had
// their effect, the driver lies, hangs and is killed, and the agent is killed. No mount, no
// directory and no staged volume is left, and each volume has what its pods have written.
func TestMount_Storm(t *testing.T) {
	const volumes, rounds = 20, 4
	e := newEnv(t, nil)
	s := &storm{random: rand.New(rand.NewPCG(1, 2)), faults: map[string]int{}} //nolint:gosec // the same faults in each run
	// try calls f until it succeeds, as syncs of a pod do.
	try := func(f func() error) error {
		var err error
		for range 1000 {
			if err = f(); err == nil {
				return nil
			}
		}
		return err
	}
	each := func(f func(i int) error) error {
		errs := make([]error, volumes)
		var wg sync.WaitGroup
		for i := range volumes {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	handle := func(i int) string { return fmt.Sprint("v", i) }
	pod := func(i, round int) *corev1.Pod { return newPod(fmt.Sprintf("%d-%d", i, round)) }
	// mount mounts volume i for the pod of a round.
	mount := func(ctx context.Context, i, round, gi int) (string, error) {
		v := e.volumeOf(pod(i, round), handle(i))
		v.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse(fmt.Sprintf("%dGi", gi))
		m, err := e.Mount(ctx, v)
		return m.HostPath, err
	}
	write := func(i, round int) error {
		return try(func() error {
			path, err := mount(t.Context(), i, round, round+1)
			if err == nil {
				err = appendLine(filepath.Join(path, "log"), round)
			}
			return err
		})
	}
	unmount := func(i, round int) error {
		if round < 0 {
			return nil
		}
		return try(func() error { return e.Unmount(t.Context(), pod(i, round).UID) })
	}
	// crash kills the agent and the driver in the middle of calls, and starts them again.
	crash := func(ctx context.Context, f func(ctx context.Context, i int) error) {
		t.Helper()
		ctx, kill := context.WithCancel(ctx)
		s.mu.Lock()
		s.limit, s.hung = volumes/2, make(chan struct{})
		hung := s.hung
		s.mu.Unlock()
		go func() { <-hung; kill() }()
		require.Error(t, each(func(i int) error { return f(ctx, i) }))
		e.stop(true)
		e.restart(nil)
		e.serve()
	}

	e.driver.SetBefore(s.before)
	e.driver.SetAfter(s.after)
	for round := range rounds {
		// Made, or moved from the pod before, which has ended or has not.
		crash(t.Context(), func(ctx context.Context, i int) error { _, err := mount(ctx, i, round, round+1); return err })
		require.NoError(t, each(func(i int) error {
			if i%2 == 0 {
				return errors.Join(unmount(i, round-1), write(i, round))
			}
			return errors.Join(write(i, round), unmount(i, round-1))
		}))
		require.NoError(t, each(func(i int) error {
			want := int64(round+2) << 30
			return try(func() error {
				if _, err := mount(t.Context(), i, round, round+2); err != nil {
					return err
				}
				if got := e.driver.Size(handle(i)); got != want {
					return fmt.Errorf("volume %d has %d bytes, want %d", i, got, want)
				}
				return nil
			})
		}))
	}
	crash(t.Context(), func(ctx context.Context, i int) error { return e.Unmount(ctx, pod(i, rounds-1).UID) })
	require.NoError(t, each(func(i int) error { return unmount(i, rounds-1) }))
	e.unstageOrphans() // as Run does
	e.requireNothingLeft()
	for _, method := range faultyMethods() {
		assert.Positive(t, s.faults[method+" fails"], method)
		assert.Positive(t, s.faults[method+" loses its answer"], method)
	}
	assert.Positive(t, s.faults["NodePublishVolume lies"])
	for i := range volumes {
		text, err := os.ReadFile(filepath.Join(e.driver.VolumeDir(handle(i)), "data", "log"))
		require.NoError(t, err)
		assert.Equal(t, "round 0\nround 1\nround 2\nround 3\n", string(text), i)
	}
}

func appendLine(path string, round int) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "round %d\n", round)
	return errors.Join(err, f.Close())
}
