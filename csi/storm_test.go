package csi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// VD-2: twenty pods are made, expanded, moved and deleted, while calls fail before and after they
// had their effect, and the agent is restarted in between. Nothing is left, and each volume
// has what its pods have written.
func TestMount_Storm(t *testing.T) {
	const volumes, rounds = 20, 3
	e := newEnv(t, nil)
	var faults atomic.Int64
	var random sync.Mutex
	source := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same faults in each run
	inject := func(_ context.Context, method string, _ any) error {
		random.Lock()
		n := source.IntN(6)
		random.Unlock()
		if n > 1 {
			return nil
		}
		faults.Add(1)
		if n == 1 {
			return status.Error(codes.Aborted, method+" aborted")
		}
		return status.Error(codes.Unavailable, method+" unavailable")
	}
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
	each := func(f func(i int) error) {
		t.Helper()
		errs := make([]error, volumes)
		var wg sync.WaitGroup
		for i := range volumes {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
	}
	pod := func(i, round int) *corev1.Pod { return newPod(fmt.Sprintf("%d-%d", i, round)) }
	size := func(round int) resource.Quantity { return resource.MustParse(fmt.Sprintf("%dGi", round+2)) }

	e.driver.SetBefore(inject)
	for round := range rounds {
		each(func(i int) error { // made, or moved from the pod before
			v := e.volumeOf(pod(i, round), fmt.Sprint("v", i))
			return try(func() error {
				m, err := e.Mount(t.Context(), v)
				if err == nil {
					err = appendLine(filepath.Join(m.HostPath, "log"), round)
				}
				return err
			})
		})
		if round > 0 {
			each(func(i int) error { return try(func() error { return e.Unmount(t.Context(), pod(i, round-1).UID) }) })
		}
		each(func(i int) error { // expanded
			v := e.volumeOf(pod(i, round), fmt.Sprint("v", i))
			v.PersistentVolume.Spec.Capacity["storage"] = size(round)
			return try(func() error {
				want := size(round)
				if _, err := e.Mount(t.Context(), v); err != nil {
					return err
				}
				if got := e.driver.Size(fmt.Sprint("v", i)); got != want.Value() {
					return fmt.Errorf("volume %d has %d bytes", i, got)
				}
				return nil
			})
		})
		e.driver.SetBefore(nil)
		e.restart(nil)
		e.register()
		e.driver.SetBefore(inject)
	}
	each(func(i int) error { return try(func() error { return e.Unmount(t.Context(), pod(i, rounds-1).UID) }) })
	e.requireNothingLeft()
	assert.Greater(t, faults.Load(), int64(volumes))
	for i := range volumes {
		text, err := os.ReadFile(filepath.Join(e.driver.VolumeDir(fmt.Sprint("v", i)), "data", "log"))
		require.NoError(t, err)
		assert.Equal(t, "round 0\nround 1\nround 2\n", string(text))
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
