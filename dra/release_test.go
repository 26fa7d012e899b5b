package dra_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/dra"
)

// twoDrivers serves the drivers gpuDriver and z.example. start makes a manager that knows both.
func twoDrivers(t *testing.T, file string, claims fakeClaims) (first, second *fakeDriver, start func() *dra.Manager) {
	t.Helper()
	first, second = new(fakeDriver), new(fakeDriver)
	firstPlugin, secondPlugin := serve(t, first), serve(t, second)
	secondPlugin.Name = "z.example"
	return first, second, func() *dra.Manager {
		m := newManager(t, file, claims)
		register(t, m, firstPlugin)
		register(t, m, secondPlugin)
		return m
	}
}

// A release that one driver has completed and another has not is remembered as begun: the next pod with the claim has it prepared
// by both, also after a restart.
func TestManager_PreparesAfterPartOfARelease(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		first, second, start := twoDrivers(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver, "z.example")})
		m := start()
		inject(t, m, pod("one", "a"), false)
		second.answer = func(string, *api.Claim) (string, error) { return "", errors.New("busy") }
		require.ErrorContains(t, m.Release(t.Context(), "one"), "busy")
		require.Equal(t, []string{"prepare a", "unprepare a"}, first.taken())
		second.answers("", nil)
		if restarted {
			m = start()
		}
		inject(t, m, pod("two", "a"), false)
		require.Equal(t, []string{"prepare a"}, first.taken(), "restarted: %v", restarted)
	}
}

// A claim that gets other devices while its former ones are not released waits for that: a driver would have the two mixed up.
func TestManager_ReleasesBeforeAnotherAllocation(t *testing.T) {
	d := new(fakeDriver)
	claims := fakeClaims{"a": claim("a", gpuDriver)}
	m := newManager(t, stateFile(t), claims)
	register(t, m, serve(t, d))
	inject(t, m, pod("one", "a"), false)
	d.answers("busy", nil)
	require.Error(t, m.Release(t.Context(), "one"))
	next := claim("a", gpuDriver)
	next.Status.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{Request: "gpu", Driver: gpuDriver, Pool: "node", Device: "another"}}
	claims["a"] = next
	d.answers("", nil)
	d.taken()
	require.ErrorContains(t, injectErr(t, m, pod("two", "a")), "not released yet")
	require.Empty(t, d.taken())
	require.NoError(t, m.Release(t.Context(), "one"))
	inject(t, m, pod("two", "a"), false)
	require.Equal(t, []string{"unprepare a", "prepare a"}, d.taken())
}

// When the agent stops it does not wait for drivers. The next agent releases the claim, with all its drivers.
func TestManager_ReleaseEndsWithItsContext(t *testing.T) {
	file := stateFile(t)
	first, second, start := twoDrivers(t, file, fakeClaims{"a": claim("a", gpuDriver, "z.example"), "b": claim("b", gpuDriver)})
	m := start()
	inject(t, m, pod("one", "a", "b"), false)
	ctx, cancel := context.WithCancel(t.Context())
	second.answer = func(string, *api.Claim) (string, error) {
		cancel()
		return "", errHang
	}
	begun := time.Now()
	err := m.Release(ctx, "one")
	require.ErrorContains(t, err, "release ResourceClaim lab/a: driver z.example: NodeUnprepareResources: ")
	require.ErrorContains(t, err, "release ResourceClaim lab/b: ")
	require.Less(t, time.Since(begun), time.Minute, "the timeout of a call")
	require.Equal(t, []string{"a", "b"}, stored(t, file))

	m = start()
	assert.True(t, m.HasUnreleased(pod("one", "a", "b")))
	first.taken()
	second.answers("", nil)
	second.taken()
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"unprepare a", "unprepare b"}, first.taken())
	require.Equal(t, []string{"unprepare a"}, second.taken())
	require.Empty(t, stored(t, file))
}

func TestManager_HasUnreleased(t *testing.T) {
	d, file := new(fakeDriver), stateFile(t)
	claims := fakeClaims{"a": claim("a", gpuDriver)}
	m := newManager(t, file, claims)
	register(t, m, serve(t, d))
	p := pod("one", "a")
	assert.False(t, m.HasUnreleased(p), "nothing is prepared")
	inject(t, m, p, false)
	assert.True(t, m.HasUnreleased(p))
	assert.False(t, m.HasUnreleased(pod("two", "a")), "another pod")
	m = newManager(t, file, claims)
	assert.True(t, m.HasUnreleased(p), "after a restart")
	register(t, m, serve(t, d))
	require.NoError(t, m.Release(t.Context(), "one"))
	assert.False(t, m.HasUnreleased(p))
}

// A pod that waits for a driver can end without it, as nothing was prepared: the driver may never come. One whose claim the
// driver may have prepared waits for its release.
func TestManager_ReleasesWithoutADriverThatNeverCame(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver, "z.example"), "b": claim("b", gpuDriver)})
	plugin := serve(t, d)
	register(t, m, plugin)
	both := pod("one", "a")
	require.ErrorIs(t, injectErr(t, m, both), dra.ErrNoDriver)
	assert.Empty(t, d.taken(), "the other driver is missing")
	assert.False(t, m.HasUnreleased(both))
	require.NoError(t, m.Release(t.Context(), "one"))
	require.NoFileExists(t, file)

	inject(t, m, pod("two", "b"), false)
	m.Deregister(t.Context(), plugin)
	inject(t, m, pod("three", "b"), false)
	require.NoError(t, m.Release(t.Context(), "two"))
	require.ErrorIs(t, m.Release(t.Context(), "three"), dra.ErrNoDriver)
	require.ErrorIs(t, injectErr(t, m, pod("four", "b")), dra.ErrNoDriver, "the release has begun")
	register(t, m, plugin)
	require.NoError(t, m.Release(t.Context(), "four"), "it has not used the claim")
	require.NoError(t, m.Release(t.Context(), "three"))
	require.Equal(t, []string{"prepare b", "unprepare b"}, d.taken())
	require.Empty(t, stored(t, file))
}

// A pod gets a shared claim that is prepared only after that is stored: the next process would release the claim under it.
func TestManager_StoresEachPodOfAClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	file, d := filepath.Join(dir, "claims.json"), new(fakeDriver)
	claims := fakeClaims{"a": claim("a", gpuDriver)}
	m, p := newManager(t, file, claims), serve(t, d)
	register(t, m, p)
	inject(t, m, pod("one", "a"), false)
	require.NoError(t, os.Rename(dir, dir+".away"))
	for range 2 {
		require.ErrorContains(t, injectErr(t, m, pod("two", "a")), "store prepared claims")
	}
	inject(t, m, pod("one", "a"), false)
	require.NoError(t, os.Rename(dir+".away", dir))
	inject(t, m, pod("two", "a"), false)

	m = newManager(t, file, claims)
	register(t, m, p)
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"prepare a"}, d.taken(), "two uses it")
	require.NoError(t, m.Release(t.Context(), "two"))
	require.Equal(t, []string{"unprepare a"}, d.taken())
}

// What is stored of a pod that does not exist any more can be released, also after a restart.
func TestManager_PodUIDs(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	claims := fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver)}
	plugin := serve(t, d)
	m := newManager(t, file, claims)
	register(t, m, plugin)
	inject(t, m, pod("two", "a"), false)
	inject(t, m, pod("one", "a", "b"), false)
	m = newManager(t, file, claims)
	register(t, m, plugin)
	uids, err := m.PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"one", "two"}, uids)
	d.taken()
	for _, uid := range uids {
		require.NoError(t, m.Release(t.Context(), uid))
	}
	require.ElementsMatch(t, []string{"unprepare a", "unprepare b"}, d.taken())
	uids, err = m.PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700)) // cannot be read
	_, err = newManager(t, file, claims).PodUIDs()
	require.ErrorContains(t, err, "cannot be read")
}

// A claim that is deleted and made again before the pod has got its devices is released, and the pod has those of the new one alone:
// a container that had now the one and now the other would be started again each time.
func TestManager_ReleasesAClaimThatWasReplaced(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	claims := fakeClaims{"a": claim("a", gpuDriver)}
	m := newManager(t, file, claims)
	register(t, m, serve(t, d))
	d.answers("", errors.New("no answer"))
	p := pod("one", "a")
	injectErr(t, m, p)

	claims["a"] = claim("a", gpuDriver)
	claims["a"].UID = "another"
	require.ErrorContains(t, injectErr(t, m, p), "release the one that it has replaced: driver gpu.vendor.example: NodeUnprepareResources: ")
	d.answers("", nil)
	d.taken()
	inject(t, m, p, false)
	require.Equal(t, []string{"unprepare a", "prepare a"}, d.taken())
	require.Equal(t, []string{"a"}, stored(t, file))
	for range 20 {
		inject(t, m, p, true)
	}
	require.Len(t, m.DynamicResources(p, &p.Spec.Containers[0]), 1)
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"unprepare a"}, d.taken())
}

// A release that cannot be stored is no error, as on a disk that the pod has filled. The next process has the claim released once more,
// and prepared once more for another pod: what is stored of its devices is not so any more.
func TestRelease_CannotBeStored(t *testing.T) {
	file, d := filepath.Join(t.TempDir(), "state", "claims.json"), new(fakeDriver)
	dir := filepath.Dir(file)
	require.NoError(t, os.Mkdir(dir, 0o700))
	p, claims := serve(t, d), fakeClaims{"a": claim("a", gpuDriver)}
	m := newManager(t, file, claims)
	register(t, m, p)
	one, two := pod("one", "a"), pod("two", "a")
	ids := inject(t, m, one, false)
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, m.Release(t.Context(), one.UID))
	require.False(t, m.HasUnreleased(one))
	require.NoError(t, os.Rename(dir+".away", dir))
	require.Equal(t, []string{"prepare a", "unprepare a"}, d.taken())

	m = newManager(t, file, claims)
	require.ErrorIs(t, injectErr(t, m, two), dra.ErrNoDriver)
	register(t, m, p)
	d.answers("", errors.New("not now"))
	require.ErrorContains(t, injectErr(t, m, two), "not now")
	d.answers("", nil)
	d.taken()
	require.Equal(t, ids, inject(t, m, two, false))
	require.Equal(t, ids, inject(t, m, two, false))
	require.Equal(t, []string{"prepare a"}, d.taken())
	require.NoError(t, m.Release(t.Context(), one.UID))
	require.Empty(t, d.taken())
	require.NoError(t, m.Release(t.Context(), two.UID))
	require.Equal(t, []string{"unprepare a"}, d.taken())
	require.Empty(t, stored(t, file))
}
