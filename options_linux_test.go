package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// cgroupFile reads a file of a cgroup: the first of files that exists, by
// controller and name on version 1, and by name on version 2.
func cgroupFile(t *testing.T, controller, group, v1, v2 string) string {
	t.Helper()
	for _, path := range []string{filepath.Join("/sys/fs/cgroup", controller, group, v1), filepath.Join("/sys/fs/cgroup", group, v2)} {
		if b, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	t.Fatalf("cgroup %s has neither %s nor %s", group, v1, v2)
	return ""
}

// CR-2: process and memory limits of all pods, and the process limit of each pod.
func TestWithNode_PodsCgroupLimitsAndPodPidsLimit(t *testing.T) {
	const root = "/sublet-options-test"
	probe := "/sys/fs/cgroup/pids" + root
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		probe = "/sys/fs/cgroup" + root
	}
	if err := os.Mkdir(probe, 0o755); err != nil && !os.IsExist(err) {
		t.Skipf("cgroups cannot be created here: %v", err)
	}
	t.Cleanup(func() { removeCgroups(t, root) })
	web := agenttest.Pod("web")
	web.UID = "uid-web"
	web.Spec.Containers[0].Resources.Requests = resources("cpu=10m")
	runSimulated(t,
		func(*agent.Agent) {
			assert.Equal(t, "1234", cgroupFile(t, "pids", root+"/kubepods", "pids.max", "pids.max"))
			assert.Equal(t, "2147483648", cgroupFile(t, "memory", root+"/kubepods", "memory.limit_in_bytes", "memory.max"))
			assert.Equal(t, "77", cgroupFile(t, "pids", root+"/kubepods/burstable/poduid-web", "pids.max", "pids.max"))
		},
		func() podsource.Source { return podsource.NotStatic(podsource.NewMemory(web)) },
		agent.WithRootDir(t.TempDir()),
		agent.WithNode(node.Config{
			CgroupRoot: root, PodPidsLimit: 77,
			Allocatable:      resources("cpu=2", "memory=1Gi"),
			PodsCgroupLimits: resources("pid=1234", "memory=2Gi"),
		}),
	)
}

func TestWithNode_LogLinksDir(t *testing.T) {
	root, links := t.TempDir(), t.TempDir()
	var pods *podsource.Memory
	source := func() podsource.Source {
		pods = podsource.NewMemory(agenttest.Pod("web"), agenttest.Pod("stays"))
		return pods
	}
	link := func(name string) string { return filepath.Join(links, name+".log") }
	runSimulated(t,
		func(*agent.Agent) {
			for _, name := range []string{"web", "stays"} {
				found, err := filepath.Glob(filepath.Join(root, "logs", "default_"+name+"*"))
				require.NoError(t, err)
				require.Len(t, found, 1, name)
				log := filepath.Join(found[0], "extra.log")
				require.NoError(t, os.WriteFile(log, nil, 0o600))
				require.NoError(t, os.Symlink(log, link(name)))
				now := unix.NsecToTimeval(time.Now().UnixNano()) // of the bubble
				require.NoError(t, unix.Lutimes(link(name), []unix.Timeval{now, now}))
			}
			require.NoError(t, os.Symlink("/var/log/other.log", link("foreign")))
			pods.Delete("default", "web")
			time.Sleep(10 * time.Minute)
		},
		source, agent.WithRootDir(root),
		agent.WithNode(node.Config{DisableCgroups: true, LogLinksDir: links}),
	)
	assert.NoFileExists(t, link("web"))
	for _, name := range []string{"stays", "foreign"} {
		_, err := os.Lstat(link(name))
		assert.NoError(t, err, name)
	}
}

// removeCgroups removes a cgroup and those below it from all hierarchies.
func removeCgroups(t *testing.T, group string) {
	t.Helper()
	var dirs []string
	for _, pattern := range []string{"/sys/fs/cgroup" + group, "/sys/fs/cgroup/*" + group} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, top := range found {
			require.NoError(t, filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			}))
		}
	}
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // links of version 1 name a directory twice
	}
}

// Names of nodes and pods have no capitals, which a host's name may have.
func TestWithNodeName_DefaultIsInLowerCase(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: it sets a host name, in a namespace of its own")
	}
	name, errs := "", make(chan error, 1)
	enough := errors.New("enough is built")
	go func() {
		runtime.LockOSThread() // to its end: the namespace is the thread's
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte("Edge-1"))); err != nil {
			errs <- err
			return
		}
		_, err := agent.New(agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory()),
			agent.WithRunner("name", func(c *agent.Components) (agent.Runner, error) {
				name = c.NodeName
				return nil, enough
			}))
		errs <- err
	}()
	require.ErrorIs(t, <-errs, enough)
	assert.Equal(t, "edge-1", name)
}
