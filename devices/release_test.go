package devices_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/runtime"
)

// A release that could not be stored is no error, as on a disk that the pod has filled, and is stored by the next one, of whichever pod.
func TestRelease_StoresWhatAnEarlierOneCouldNot(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	p := pod("p", container("c", 1))
	require.Equal(t, "a", inject(t, m, p))
	dir := filepath.Dir(file)
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, m.Release(t.Context(), p.UID))
	require.NoError(t, m.Release(t.Context(), p.UID), "still not stored")
	require.NoError(t, os.Rename(dir+".away", dir))
	uids, err := newManager(t, file).PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{p.UID}, uids, "of another process, which releases it")
	require.NoError(t, m.Release(t.Context(), "of another pod"))
	uids, err = newManager(t, file).PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)
}

// A pod has devices until they are released, and none of which it is not known.
func TestManager_HasUnreleased(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	p := pod("p", container("c", 1))
	require.False(t, m.HasUnreleased(p))
	inject(t, m, p)
	require.True(t, m.HasUnreleased(p))
	m = newManager(t, file)
	require.True(t, m.HasUnreleased(p))
	require.NoError(t, m.Release(t.Context(), p.UID))
	require.False(t, m.HasUnreleased(p))
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700)) // cannot be read
	require.False(t, newManager(t, file).HasUnreleased(p), "nothing is given to others either")
}

// rude panics in each call.
type rude struct{}

func (rude) Allocate(context.Context, []string) (runtime.Injection, error) { panic("rude") }
func (rude) PreStart(context.Context, []string) error                      { panic("rude") }
func (rude) Choose(context.Context, []string, []string, int) ([]string, error) {
	panic("rude")
}

func TestManager_SurvivesPanics(t *testing.T) {
	m := newManager(t, stateFile(t), func(cfg *devices.Config) {
		cfg.Hooks = devices.Hooks{Allocated: func(devices.Request) { panic("hook") }}
	})
	m.NotifyHealth(func(types.UID) { panic("listener") })
	require.NoError(t, m.Update(gpu, rude{}, healthy("a", "b")))
	p := pod("p", container("c", 1))
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.ErrorContains(t, err, "panic: rude")
	require.Empty(t, m.Allocations(p.UID), "the device is free again")
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	inject(t, m, p)
	require.NoError(t, m.Update(gpu, rude{}, []devices.Device{{ID: "a"}, {ID: "b"}}))
	require.ErrorContains(t, m.PreStart(t.Context(), p, "c"), "panic: rude")
}

// verbose is a plugin whose answers are as large as a message may be, and larger in JSON.
type verbose struct{ size int }

func (v *verbose) Allocate(context.Context, []string) (runtime.Injection, error) {
	return runtime.Injection{Env: map[string]string{"GPUS": strings.Repeat("x", v.size)}}, nil
}

// What a plugin answers cannot make the state file larger than what is read of it, which would lose all allocations.
func TestManager_StoresNoMoreThanItReads(t *testing.T) {
	file, plugin := stateFile(t), &verbose{size: 9 << 20}
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	one, two := pod("one", container("c", 1)), pod("two", container("c", 1))
	inject(t, m, one)
	_, err := m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
	require.ErrorContains(t, err, "store allocations")
	require.Empty(t, m.Allocations(two.UID), "the device is free")
	plugin.size = 1
	require.Equal(t, "x", inject(t, m, two))

	restarted := newManager(t, file)
	uids, err := restarted.PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{one.UID, two.UID}, uids)
}
