package containergc_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// countedNode is a node that counts the changes of its pods.
type countedNode struct {
	*node
	changes uint64
}

func (n *countedNode) Changes() uint64 { return n.changes }

// The logs directory is read when something in it may be that of a deleted pod which the last
// cleanup has not read.
func TestCollector_ReadsLogsAfterChanges(t *testing.T) {
	past := time.Now().Add(-time.Hour)
	type setup struct {
		t      *testing.T
		dir    string
		n      *countedNode
		states podStates
		cfg    *containergc.Config
	}
	// add makes the log directory of a pod, and has that look as old as it should.
	add := func(s *setup, name string, changed time.Time) {
		root, err := os.OpenRoot(s.dir)
		require.NoError(s.t, err)
		defer root.Close()
		require.NoError(s.t, root.Mkdir(name, 0o755))
		require.NoError(s.t, owner.Mark(root, name, "one"))
		require.NoError(s.t, os.Chtimes(s.dir, changed, changed))
	}
	for name, tc := range map[string]struct {
		before  func(*setup)
		change  func(*setup)
		cleaned int
	}{
		"nothing changes":                 {change: func(*setup) {}},
		"a new directory":                 {change: func(s *setup) { add(s, "ns_new_u9", past) }, cleaned: 1},
		"the pod is deleted":              {change: func(s *setup) { s.states["u2"] = containergc.PodDeleted }, cleaned: 1},
		"the runtime has the pod no more": {change: func(s *setup) { s.states["u1"], s.n.pods = containergc.PodDeleted, nil; s.n.changes++ }, cleaned: 1},
		"a link breaks": {
			before: func(s *setup) { s.cfg.LinksDir = s.t.TempDir() },
			change: func(s *setup) {
				link := filepath.Join(s.cfg.LinksDir, "a.log")
				require.NoError(s.t, os.Symlink(filepath.Join(s.dir, "ns_ended_u2", "a", "0.log"), link))
				require.NoError(s.t, lutimes(link, past))
			},
			cleaned: 1,
		},
		"there is no count of changes": {
			before:  func(s *setup) { s.cfg.Containers = s.n.node },
			change:  func(s *setup) { add(s, "ns_new_u9", past) },
			cleaned: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &countedNode{node: &node{pods: map[types.UID]*runtime.Pod{
				"u1": {UID: "u1", Namespace: "ns", Name: "live", Containers: []runtime.Container{ctr("x", "a", "", 0, runtime.Running, 1)}},
			}}}
			states := podStates{"u9": containergc.PodDeleted}
			s := &setup{t: t, dir: t.TempDir(), n: n, states: states}
			s.cfg = &containergc.Config{Containers: n, LogsDir: s.dir, Owner: func() string { return "one" }, PodState: states.of}
			add(s, "ns_live_u1", past)
			add(s, "ns_ended_u2", past) // nothing of it is in the runtime any more
			if tc.before != nil {
				tc.before(s)
			}
			c := collector(t, *s.cfg)
			for range 2 {
				result, err := c.Collect(t.Context())
				require.NoError(t, err)
				require.Zero(t, result.LogDirs)
			}
			tc.change(s)
			result, err := c.Collect(t.Context())
			require.NoError(t, err)
			assert.Equal(t, tc.cleaned, result.LogDirs+result.Links)
		})
	}
}

// Pods are listed again after changes alone. What can be removed of those that were listed is found all the same, when
// they are deleted, or a removal has failed.
func TestCollector_ListsAfterChanges(t *testing.T) {
	n := &countedNode{node: &node{fail: map[string]error{"1": assert.AnError}, pods: map[types.UID]*runtime.Pod{
		"ended": {UID: "ended", Containers: []runtime.Container{ctr("1", "a", "", 0, runtime.Exited, 1), ctr("2", "b", "", 0, runtime.Running, 1)}},
		"runs":  {UID: "runs", Containers: []runtime.Container{ctr("3", "a", "", 0, runtime.Running, 1)}},
	}}}
	states := podStates{}
	c := collector(t, containergc.Config{Containers: n, PodState: states.of})
	collect := func(wantErr error) (removed, listed int) {
		before := n.listed()
		result, err := c.Collect(t.Context())
		require.ErrorIs(t, err, wantErr)
		return result.Containers, n.listed() - before
	}
	expect := func(wantErr error, wantRemoved, wantListed int) {
		t.Helper()
		removed, listed := collect(wantErr)
		assert.Equal(t, wantRemoved, removed)
		assert.Equal(t, wantListed, listed)
	}
	expect(nil, 0, 1)
	expect(nil, 0, 0)
	states["ended"], states["runs"] = containergc.PodDeleted, containergc.PodDeleted
	expect(assert.AnError, 0, 0)
	n.fail = nil
	expect(nil, 1, 0)
	n.pods["runs"].Containers[0].State = runtime.Exited
	n.changes++
	expect(nil, 1, 1)
	n.changes++ // by the removals
	expect(nil, 0, 1)
	expect(nil, 0, 0)
	c = collector(t, containergc.Config{Containers: n.node, PodState: states.of})
	expect(nil, 0, 1)
	expect(nil, 0, 1)
}
