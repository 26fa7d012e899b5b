package podsync_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsync"
)

// PS-4: the directory of pods is read when it has changed, and never taken for unchanged.
func TestListPodsFromDisk_Changes(t *testing.T) {
	cfg := newConfig(t, &fakeNode{})
	s := newSyncer(t, cfg)
	past := time.Now().Add(-time.Hour)
	var want []types.UID
	list := func() {
		uids, err := s.ListPodsFromDisk()
		if err != nil {
			panic(err)
		}
		assert.ElementsMatch(t, want, uids)
	}
	add := func(uid string) {
		require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, uid), 0o700))
		want = append(want, types.UID(uid))
	}
	const pods = 300
	for i := range pods {
		add(fmt.Sprintf("uid-%d", i))
	}
	for range 3 {
		list() // it may still change at the very time that it has
	}
	add("soon-after")
	list()
	require.NoError(t, os.Chtimes(cfg.PodsDir, past, past))
	list()
	if goruntime.GOOS == "linux" { // elsewhere the directory is always read: see fileversion
		assert.Less(t, testing.AllocsPerRun(3, func() { _, _ = s.ListPodsFromDisk() }), float64(pods)/10)
	}
	add("later")
	list()
	require.NoError(t, os.Chtimes(cfg.PodsDir, past, past))
	list()
	require.NoError(t, os.Remove(filepath.Join(cfg.PodsDir, "later")))
	want = want[:len(want)-1]
	list()
}

// storedInjector is an injector that still has something for pods of a previous process.
type storedInjector struct {
	injector

	uids []types.UID
	fail error
}

func (i *storedInjector) PodUIDs() ([]types.UID, error) { return i.uids, i.fail }

// A pod that has nothing but CPUs, devices or claims is an orphan too, also without a directory: it may have ended while
// there was no manager of these.
func TestListPodsFromDisk_Injections(t *testing.T) {
	cfg := newConfig(t, &fakeNode{})
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-2"), 0o700))
	first, second := &storedInjector{uids: []types.UID{"uid-3", "uid-2"}}, &storedInjector{uids: []types.UID{"uid-1"}}
	cfg.Injectors = []podsync.Injector{first, new(injector), second}
	s := newSyncer(t, cfg)
	uids, err := s.ListPodsFromDisk()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"uid-1", "uid-2", "uid-3"}, uids)
	require.NoError(t, s.CleanupOrphan(t.Context(), "uid-3"))
	require.Equal(t, []string{"release uid-3"}, first.trace)

	first.fail = errors.New("unreadable")
	uids, err = s.ListPodsFromDisk()
	require.ErrorIs(t, err, first.fail)
	require.Contains(t, uids, types.UID("uid-1"))
	require.Contains(t, uids, types.UID("uid-2"))
}
