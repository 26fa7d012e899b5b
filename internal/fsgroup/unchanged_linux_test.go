package fsgroup_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/fsgroup"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/internal/systest"
)

// A pod starts though some of the files cannot be changed, as with a kubelet.
func TestApply_LeavesWhatCannotBeChanged(t *testing.T) {
	if os.Geteuid() == 0 {
		testImmutableFiles(t)
	} else {
		testGroupOfOthers(t)
	}
}

func testImmutableFiles(t *testing.T) {
	dir, _ := tree(t)
	g := group(t)
	require.NoError(t, os.WriteFile(dir+"/ready", nil, 0o600))
	require.NoError(t, os.Chown(dir+"/ready", -1, int(g)))
	require.NoError(t, os.Chmod(dir+"/ready", 0o660))
	require.NoError(t, os.WriteFile(dir+"/narrow", nil, 0o600))
	require.NoError(t, os.Chown(dir+"/narrow", -1, int(g)))
	for _, name := range []string{"/a/b/file", "/ready", "/narrow"} {
		systest.Fix(t, dir+name, systest.Immutable)
	}
	log := new(logtest.Buffer)
	require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeAlways, logtest.NewLogger(log, slog.LevelInfo)))
	for _, path := range []string{"", "/a", "/a/b", "/a/link", "/pipe"} {
		assert.Equal(t, g, gidOf(t, dir+path), path)
	}
	assert.NotEqual(t, g, gidOf(t, dir+"/a/b/file"))
	assert.Equal(t, os.FileMode(0o600), modeOf(t, dir+"/a/b/file").Perm())
	assert.Contains(t, log.String(), `level=WARN msg="volume files not given to the group" path=`+dir+` group=4242 files=2 err="ch`, "neither the file nor narrow, but ready")
	assert.Contains(t, log.String(), "operation not permitted")
}

// An ordinary user gives files only to groups that it is in.
func testGroupOfOthers(t *testing.T) {
	dir, _ := tree(t)
	log := new(logtest.Buffer)
	require.NoError(t, fsgroup.Apply(t.Context(), dir, 4242, corev1.FSGroupChangeAlways, logtest.NewLogger(log, slog.LevelInfo)))
	assert.Contains(t, log.String(), `group=4242 files=7 err="chown `)
	assert.Equal(t, os.FileMode(0o600), modeOf(t, dir+"/a/b/file").Perm(), "another group gets no permissions")
	require.NoError(t, fsgroup.Apply(t.Context(), dir, 4242, corev1.FSGroupChangeAlways, nil))
}
