package podsync_test

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
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
