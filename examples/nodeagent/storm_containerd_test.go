//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podspec"
)

const stormMostPods = 24

// storm is a node on which pods come and go while anything of theirs, the agent and containerd
// are killed.
type storm struct {
	*world
	rnd       *rand.Rand
	startTime time.Time
	share     string // directory in which containers write that they have run
	revision  int
	pods      map[string]int // revision by name, of the pods that have a manifest
	last      map[types.UID]corev1.PodStatus
}

// A storm leaves alone what it does not touch: pods of which nothing was killed run on in the
// same processes, and so does a pod of another. All other pods come to what they shall be, no
// container of restartPolicy Never runs twice, no pod that has ended runs once more, no
// restartCount goes back, and nothing of a removed pod is left.
//
// SUBLET_STORM_TIME is how long each storm takes, and SUBLET_STORM_SEED repeats one, as far as
// the machine does.
func TestStormOnContainerd(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("SUBLET_STORM_TIME"))
	if err != nil {
		t.Skip("SUBLET_STORM_TIME is no duration: ", err)
	}
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		seed, err := strconv.ParseUint(os.Getenv("SUBLET_STORM_SEED"), 10, 64)
		if err != nil {
			seed = rand.Uint64()
		}
		t.Logf("SUBLET_STORM_SEED=%d", seed)
		s := &storm{
			world: newWorld(t, n), rnd: rand.New(rand.NewPCG(seed, 0)), startTime: time.Now(), share: filepath.Join(n.Shared, "share"),
			pods: map[string]int{}, last: map[types.UID]corev1.PodStatus{},
		}
		require.NoError(t, os.Mkdir(s.share, 0o755))
		s.extra = []string{"-sync-frequency=10s", "-max-container-restart-period=2s"}
		s.runForeign()
		s.start()
		s.add("steady-0")
		s.add("steady-1")
		s.eventually(longRunTime, s.settled)
		untouched := s.processes("steady", stormForeign)
		require.Len(t, untouched, 6, "a sandbox and a container of each")
		steps := stormSteps()
		for time.Since(s.startTime) < length {
			step := steps[s.rnd.IntN(len(steps))]
			s.logf("%s", step.name)
			step.play(s)
			s.checkStatuses()
			s.pause(600 * time.Millisecond)
		}
		s.logf("the storm is over")
		s.eventually(longRunTime, s.settled)
		require.Equal(t, untouched, s.processes("steady", stormForeign), "processes that were left alone")
		s.checkRuns()
		for name := range s.pods {
			s.remove(name)
		}
		s.eventually(longRunTime, s.left)
		require.Len(t, s.processes(stormForeign), 2)
	})
}

type stormStep struct {
	name string
	play func(*storm)
}

// stormSteps are what can happen, each as often as it is listed.
func stormSteps() []stormStep {
	add, remove := stormStep{"add pods", (*storm).addPods}, stormStep{"remove a pod", (*storm).removePod}
	return []stormStep{
		add, add, add, remove, remove,
		{"change a pod", (*storm).changePod},
		{"kill the agent", (*storm).killAgent},
		{"kill containerd", (*storm).killDaemon},
		{"stop containerd for a while", (*storm).stopDaemon},
		{"kill a container", func(s *storm) { s.killProcess(s.randomContainer(), false) }},
		{"kill a sandbox", func(s *storm) { s.killProcess(s.randomSandbox(), true) }},
		{"kill a shim", (*storm).killShim},
		{"remove a container", (*storm).removeContainer},
		{"stop a sandbox", (*storm).stopSandbox},
		{"remove a sandbox", (*storm).removeSandbox},
		{"wait", func(s *storm) { s.pause(3 * time.Second) }},
	}
}

func (s *storm) logf(format string, args ...any) {
	s.t.Logf("%6.1fs "+format, append([]any{time.Since(s.startTime).Seconds()}, args...)...)
}

// pause lets less than d pass.
func (s *storm) pause(d time.Duration) { time.Sleep(rand.N(d)) }

func (s *storm) addPods() {
	kinds := []string{"plain", "sidecar", "never", "onfailure", "crash", "host", "limits"}
	for range 1 + s.rnd.IntN(4) {
		if len(s.pods) < stormMostPods {
			s.add(fmt.Sprintf("%s-%d", kinds[s.rnd.IntN(len(kinds))], s.rnd.IntN(4)))
		}
	}
}

// add writes the manifest of a pod; one that there was ends.
func (s *storm) add(name string) {
	s.revision++
	s.pods[name] = s.revision
	text, err := json.Marshal(s.pod(name))
	require.NoError(s.t, err)
	s.write(name+".json", string(text))
	s.logf("%s is revision %d", name, s.revision)
}

func (s *storm) remove(name string) {
	delete(s.pods, name)
	require.NoError(s.t, os.Remove(filepath.Join(s.manifests, name+".json")))
	s.logf("%s is removed", name)
}

// randomPod returns a pod that may be disturbed, or "".
func (s *storm) randomPod() string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.pods)), isSteady)
	if len(names) == 0 {
		return ""
	}
	return names[s.rnd.IntN(len(names))]
}

func isSteady(pod string) bool { return strings.HasPrefix(pod, "steady") }

func (s *storm) removePod() {
	if name := s.randomPod(); name != "" {
		s.remove(name)
	}
}

func (s *storm) changePod() {
	if name := s.randomPod(); name != "" {
		s.add(name)
	}
}

func (s *storm) killAgent() {
	_ = s.signal(syscall.SIGKILL) // the error says that it was killed
	s.pause(1500 * time.Millisecond)
	s.start()
}

func (s *storm) killDaemon() {
	s.node.StopDaemon(s.t, syscall.SIGKILL)
	s.pause(3 * time.Second)
	s.node.StartDaemon(s.t)
}

func (s *storm) stopDaemon() {
	s.node.Signal(s.t, syscall.SIGSTOP)
	s.pause(6 * time.Second)
	s.node.Signal(s.t, syscall.SIGCONT)
}

// randomContainer returns the id of a container that runs and may be disturbed, or "".
func (s *storm) randomContainer() string {
	have, err := s.containers()
	require.NoError(s.t, err)
	var ids []string
	for pod, containers := range have {
		for _, c := range containers {
			if !isSteady(pod) && pod != stormForeign && c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
				ids = append(ids, c.GetId())
			}
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return ids[s.rnd.IntN(len(ids))]
}

// randomSandbox returns the id of a sandbox that may be disturbed, or "".
func (s *storm) randomSandbox() string {
	var ids []string
	for pod, sandboxes := range s.sandboxes() {
		if !isSteady(pod) && pod != stormForeign {
			ids = append(ids, sandboxes...)
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return ids[s.rnd.IntN(len(ids))]
}

func (s *storm) killProcess(id string, isSandbox bool) {
	if pid := s.pid(id, isSandbox); pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

func (s *storm) killShim() {
	for _, pid := range s.node.Shims()[s.randomSandbox()] {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// call runs a call of the runtime, which may fail: the agent or another step may have been first.
func (s *storm) call(id string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if id != "" {
		s.logf("%s: %v", id[:12], f(ctx))
	}
}

func (s *storm) removeContainer() {
	id := s.randomContainer()
	s.call(id, func(ctx context.Context) error {
		_, err := s.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

func (s *storm) stopSandbox() {
	id := s.randomSandbox()
	s.call(id, func(ctx context.Context) error {
		_, err := s.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (s *storm) removeSandbox() {
	id := s.randomSandbox()
	s.call(id, func(ctx context.Context) error {
		_, err := s.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// checkStatuses checks the statuses of all pods against those before.
func (s *storm) checkStatuses() {
	files, err := filepath.Glob(filepath.Join(s.statuses, "*.json"))
	require.NoError(s.t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(s.t, err)
		var pod corev1.Pod
		require.NoError(s.t, json.Unmarshal(text, &pod))
		before, now := s.last[pod.UID], pod.Status
		s.last[pod.UID] = now
		if podspec.IsTerminalPhase(before.Phase) && before.Phase != now.Phase {
			s.t.Errorf("%s went from %s to %s", pod.Name, before.Phase, now.Phase)
		}
		restarts := map[string]int32{}
		for _, c := range slices.Concat(before.InitContainerStatuses, before.ContainerStatuses) {
			restarts[c.Name] = c.RestartCount
		}
		for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses) {
			if c.RestartCount < restarts[c.Name] {
				s.t.Errorf("restartCount of %s in %s went from %d to %d", c.Name, pod.Name, restarts[c.Name], c.RestartCount)
			}
		}
	}
}

// checkRuns checks that no container of a pod with restartPolicy Never has run twice.
func (s *storm) checkRuns() {
	files, err := filepath.Glob(filepath.Join(s.share, "never*"))
	require.NoError(s.t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(s.t, err)
		runs := strings.Fields(string(text))
		slices.Sort(runs)
		require.Equal(s.t, slices.Compact(slices.Clone(runs)), runs, "UIDs of pods whose container has run in %s", f)
	}
}
