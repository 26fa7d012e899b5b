package cri

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

func TestLogLinkName(t *testing.T) {
	assert.Equal(t, "web_default_main-1f2e.log", logLinkName("web", "default", "main", "1f2e"))
	long := logLinkName(strings.Repeat("a", 253), "default", "main", "1f2e")
	assert.Equal(t, strings.Repeat("a", 251)+".log", long, "as long as a file name may be")
}

// Each container that is started gets a link to its log; without a directory none does, and
// a failure costs nothing but the link.
func TestApply_LinksLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "containers")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var logged logtest.Buffer
	for _, links := range []string{dir, "", file} {
		f := newFake()
		f.addImage(busybox)
		logger := slog.New(slog.NewTextHandler(&logged, nil))
		applied := f.client(t, Config{LogLinksDir: links, Logger: logger}).Apply(t.Context(), onePod("main"), startAll(onePod("main")), runtime.RunOptions{LogDir: "/logs/pod"})
		require.Empty(t, applied.Failures)
	}
	made, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, made, 1)
	assert.Regexp(t, `^`+onePod("main").Name+`_`+onePod("main").Namespace+`_main-.+\.log$`, made[0].Name())
	target, err := os.Readlink(filepath.Join(dir, made[0].Name()))
	require.NoError(t, err)
	assert.Equal(t, "/logs/pod/main/0.log", target)
	assert.Equal(t, 1, strings.Count(logged.String(), "linking container log failed"))
}

// A runtime chooses the id of a container, but not where links are made.
func TestApply_LinksLogsInTheDirectoryAlone(t *testing.T) {
	parent := t.TempDir()
	var logged logtest.Buffer
	c := newFake().client(t, Config{LogLinksDir: filepath.Join(parent, "containers"), Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	run := &applyRun{c: c, pod: onePod("main"), sandboxConfig: &v1.PodSandboxConfig{LogDirectory: "/logs/pod"}}
	for _, id := range []string{"/../../elsewhere", "a/b", ".."} {
		run.linkLog("main", id, "main/0.log")
	}
	made, err := filepath.Glob(filepath.Join(parent, "*", "*"))
	require.NoError(t, err)
	require.Len(t, made, 1, "..")
	assert.Regexp(t, `/containers/.+_main-\.\.\.log$`, made[0])
	assert.NoFileExists(t, filepath.Join(parent, "elsewhere.log"))
	assert.Equal(t, 2, strings.Count(logged.String(), "linking container log failed"))
}
