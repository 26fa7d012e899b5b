//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// checks says, for each pod of testdata, what is true of it when it does what
// its manifest says. RT-*, SP-* and PS-1 to PS-5 seen from outside.
var checks = map[string]func(*pod){
	"multi-container":      multiContainer,
	"init-containers":      initContainers,
	"sidecars":             sidecars,
	"users-and-groups":     usersAndGroups,
	"capabilities":         capabilities,
	"read-only-root":       readOnlyRoot,
	"seccomp":              seccomp,
	"shared-processes":     sharedProcesses,
	"downward-env":         downwardEnv,
	"downward-files":       downwardFiles,
	"projected-volume":     projectedVolume,
	"configmap-env":        configMapEnv,
	"configmap-volume":     configMapVolume,
	"configmap-missing":    configMapMissing,
	"secret-env":           secretEnv,
	"secret-volume":        secretVolume,
	"lifecycle-hooks":      lifecycleHooks,
	"resources":            resources,
	"guaranteed":           guaranteed,
	"memory-exceeded":      memoryExceeded,
	"hugepages":            hugepages,
	"claim":                claim,
	"host-network":         hostNetwork,
	"host-processes":       hostProcesses,
	"host-aliases":         hostAliases,
	"termination-message":  terminationMessage,
	"termination-log-tail": terminationLogTail,
	"emptydir-disk":        emptyDirDisk,
	"emptydir-memory":      emptyDirMemory,
	"subpath":              subPath,
	"hostpath-types":       hostPathTypes,
	"hostpath-missing":     hostPathMissing,
	"command-and-args":     commandAndArgs,
	"liveness-exec":        livenessExec,
	"liveness-http":        livenessHTTP,
	"readiness-tcp":        readinessTCP,
	"startup-probe":        startupProbe,
	"restart-on-failure":   restartOnFailure,
	"restart-rules":        restartRules,
	"init-fails":           initFails,
	"active-deadline":      activeDeadline,
	"dns-config":           dnsConfig,
	"sysctls":              sysctls,
	"pull-secret":          pullSecret,
	"pull-denied":          pullDenied,
	"image-never":          imageNever,
	"run-as-non-root":      runAsNonRoot,
	"privileged":           privileged,
	"mount-propagation":    mountPropagation,
	"stdin-and-tty":        stdinAndTTY,
	"ephemeral-container":  ephemeralContainer,
	"image-volume":         imageVolume,
	"node-selector":        nodeSelector,
	"needs-a-server":       needsServer,
	"runtime-class":        runtimeClass,
	"pod-resources":        podResources,
	"full-hostname":        fullHostname,
	"restart-all":          restartAll,
	"user-namespace":       userNamespace,
	"process":              process,
}

// TestMain has all checks wait at the same time: they hardly compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// All pods run at once on one node, and nothing of them is left at the end. SUBLET_PODS is a regular expression for the names of those
// that run on a machine that is too slow for all.
func TestPods(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(checks), "one manifest a check")
	if some := os.Getenv("SUBLET_PODS"); some != "" {
		pattern := regexp.MustCompile("-(" + some + `)\.yaml$`)
		files = slices.DeleteFunc(files, func(f string) bool { return !pattern.MatchString(f) })
		require.NotEmpty(t, files)
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		require.NoError(t, os.MkdirAll(filepath.Join(w.share, "types"), 0o755))
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(b), "# "), "%s begins with what it shows", f)
			w.put(t, filepath.Base(f), string(b))
		}
		t.Run("pods", func(t *testing.T) {
			for _, f := range files {
				_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f), ".yaml"), "-")
				check := checks[name]
				require.NotNil(t, check, name)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("the agent said of it:\n%s", w.saidOf(name+"-"+nodeName))
						}
					})
					check(&pod{testEnv: w, t: t, name: name, file: filepath.Base(f)})
				})
			}
		})
		w.empty(t)
	})
}

// empty removes every manifest and waits until nothing of the pods is left:
// no containers, mounts, cgroups, directories and logs. PS-4
func (w *testEnv) empty(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(w.manifests, "*"))
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.Remove(f))
	}
	p := &pod{testEnv: w, t: t, name: "all"}
	p.eventually(func() error {
		sandboxes, err := w.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		if left := sandboxes.GetItems(); len(left) > 0 {
			return fmt.Errorf("%d sandboxes are left: %s", len(left), left[0].GetMetadata())
		}
		for _, pattern := range []string{"agent/pods/*", "agent/statuses/*.json", "logs/*"} {
			if left, err := filepath.Glob(filepath.Join(w.node.Shared, pattern)); err != nil || len(left) > 0 {
				return fmt.Errorf("%v are left: %w", left, err)
			}
		}
		for _, c := range w.node.Cgroups() {
			if base := filepath.Base(c); strings.HasPrefix(base, "pod") || strings.Contains(base, "-pod") {
				return fmt.Errorf("cgroup %s is left", c)
			}
		}
		for _, m := range w.node.Mounts() {
			if strings.HasPrefix(m, w.node.Shared+"/") {
				return fmt.Errorf("mount %s is left", m)
			}
		}
		return nil
	})
}

// stays makes sure that something goes on being so.
func (p *pod) stays(d time.Duration, f func()) {
	p.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(tick) {
		f()
	}
}
