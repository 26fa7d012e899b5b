package containergc_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// CG-1: the log of a container is missing while it is rotated, and its link is made only once. It is
// kept until the container has ended, also when space is needed.
func TestCollector_KeepsLinksOfRotatedLogs(t *testing.T) {
	cut := strings.Repeat("a", 255-len(".log"))
	for name, tt := range map[string]struct {
		link  string // without its suffix
		state runtime.ContainerState
		want  bool // it is kept
	}{
		"running":                       {"old_ns_app-c1", runtime.Running, true},
		"unknown":                       {"old_ns_app-c1", runtime.Unknown, true},
		"created":                       {"old_ns_app-c1", runtime.Created, true},
		"exited":                        {"old_ns_app-c1", runtime.Exited, false},
		"of one that was removed":       {"old_ns_app-c0", runtime.Running, false},
		"of one whose id ends the same": {"old_ns_app-xc1", runtime.Running, false},
		"of any that runs":              {cut, runtime.Running, true},
		"of any that has exited":        {cut, runtime.Exited, false},
		"of a name that is not cut off": {cut[1:], runtime.Running, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, urgent := range []bool{false, true} {
				n := newLogsNode(t)
				n.cfg.PodState = podStates{}.of
				n.cfg.Containers = &node{pods: map[types.UID]*runtime.Pod{
					"u9": {UID: "u9", Namespace: "ns", Name: "old", Containers: []runtime.Container{ctr("c1", "app", "", 0, tt.state, 60)}},
				}}
				log, link := filepath.Join(n.podDir, "app", "0.log"), filepath.Join(n.links, tt.link+".log")
				require.NoError(t, os.Symlink(log, link))
				require.NoError(t, lutimes(link, time.Now().Add(-time.Hour)))
				require.NoError(t, os.Rename(log, log+".20260501-120000.000000000"))
				c := collector(t, n.cfg)
				if urgent {
					require.NoError(t, c.Reclaim(t.Context()))
				} else {
					_, err := c.Collect(t.Context())
					require.NoError(t, err)
				}
				_, err := os.Lstat(link)
				assert.Equal(t, tt.want, err == nil, "urgent %v", urgent)
			}
		})
	}
}

// CG-1: the links of a pod that was deleted and does not run go with its directory.
func TestCollector_RemovesLinksOfDeletedPods(t *testing.T) {
	n := newLogsNode(t)
	n.cfg.Containers = &node{pods: map[types.UID]*runtime.Pod{
		"u9": {UID: "u9", Namespace: "ns", Name: "old", Containers: []runtime.Container{ctr("c1", "app", "", 0, runtime.Created, 60)}},
	}}
	require.NoError(t, os.Rename(n.link, filepath.Join(n.links, "old_ns_app-c1.log")))
	result, err := n.collect(t)
	require.NoError(t, err)
	assert.Equal(t, containergc.Result{Containers: 1, LogDirs: 1, Links: 1}, result)
}

// OW-1: a directory that an agent was killed while it made it is removed with its pod, and another agent's stays.
func TestCollector_RemovesUnfinishedLogDirectories(t *testing.T) {
	n := newLogsNode(t)
	for name, there := range map[string]bool{".sublet-owner_one_u9": false, ".sublet-owner_one_u1": true, ".sublet-owner_two_u9": true} {
		path := filepath.Join(n.dir, name)
		require.NoError(t, os.Mkdir(path, 0o755))
		defer func() {
			_, err := os.Lstat(path)
			assert.Equal(t, there, err == nil, name)
		}()
	}
	result, err := n.collect(t)
	require.NoError(t, err)
	assert.Equal(t, containergc.Result{LogDirs: 2, Links: 1}, result)
}
