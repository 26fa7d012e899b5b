package kube_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

const machineName = "node"

// randomCluster is a node with pods of an API server, of a manifest directory and of a program, to which anything happens.
type randomCluster struct {
	t       *testing.T
	m       *agenttest.Machine
	fake    *kubetest.Fake
	rand    *rand.Rand
	memory  *podsource.Memory
	dir     string // of manifests
	process *agent.Agent
	cancel  func()
	close   func() // of the runtime
	log     []string
	// collides is set if pods of several sources have the same names.
	collides bool

	mode  atomic.Int32                  // how the API server answers: answers, rejects, hangs
	free  atomic.Pointer[chan struct{}] // closed at the end of hanging
	made  int
	apiOf map[string]bool           // names that may be in the API
	mem   map[string]*corev1.Pod    // desired, by name
	files map[string]string         // content of manifests, by name; the last valid one
	since map[string]map[string]int // containers by pod UID, at the last settlement, that must not change
}

const (
	answers int32 = iota
	rejects
	hangs
)

func (c *randomCluster) say(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf("%s ", time.Now().Format("15:04:05"))+fmt.Sprintf(format, args...))
}

func (c *randomCluster) intercept(w http.ResponseWriter, r *http.Request) bool {
	switch c.mode.Load() {
	case rejects:
		kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return true
	case hangs:
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-*c.free.Load():
			kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		}
		return true
	}
	return false
}

func (c *randomCluster) setMode(mode int32) {
	if c.mode.Load() == hangs {
		close(*c.free.Load())
	}
	if mode == hangs {
		free := make(chan struct{})
		c.free.Store(&free)
	}
	c.mode.Store(mode)
	if mode != answers || c.rand.IntN(2) == 0 {
		c.fake.CutWatches(c.rand.IntN(2) == 0)
	}
}

func (c *randomCluster) start() {
	k, err := kube.New(kube.Config{Client: c.fake.Client(), NodeName: machineName})
	require.NoError(c.t, err)
	c.process, err = agent.New(append([]agent.Option{
		agent.WithRootDir(c.m.Root), agent.WithRuntime(c.m.Client), agent.WithNode(node.Config{DisableCgroups: true}),
		agent.WithSource("memory", c.memory), agent.WithSource("file", podsource.File(c.dir, podsource.FileNotifier(nil))),
	}, k.Options(filepath.Join(c.m.Root, "api"))...)...)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	process := c.process
	go func() { done <- process.Run(ctx) }()
	c.cancel = func() {
		cancel()
		if err := <-done; err != nil {
			assert.ErrorContains(c.t, err, "statuses not sent", "while the server is away")
		}
	}
}

func (c *randomCluster) stop() {
	if c.process != nil {
		c.cancel()
		c.process = nil
	}
}

func (c *randomCluster) newPod(name string) *corev1.Pod {
	pod := newTestPod(name)
	c.made++
	pod.UID = types.UID("uid-" + strconv.Itoa(c.made))
	pod.Spec.NodeName = machineName
	grace := int64([]int{0, 1, 5, 30}[c.rand.IntN(4)])
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Annotations = map[string]string{}
	switch c.rand.IntN(6) {
	case 0:
		pod.Annotations[simulated.ScriptPrefix+"ignore-term"] = "true"
	case 1:
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Annotations[simulated.ScriptPrefix+"run-for"], pod.Annotations[simulated.ScriptPrefix+"exit-code"] = "20s", "0"
	}
	return pod
}

func completes(pod *corev1.Pod) bool { return pod.Spec.RestartPolicy == corev1.RestartPolicyNever }

func pick(r *rand.Rand, names []string) string { return names[r.IntN(len(names))] }

// stepServer changes something in the API server.
func (c *randomCluster) stepServer(names []string) {
	name := pick(c.rand, names)
	pod := c.fake.Pod("default", name)
	switch n := c.rand.IntN(6); {
	case pod != nil && podspec.IsMirror(pod):
		if c.rand.IntN(4) == 0 {
			c.say("api: take %s", name)
			c.fake.Remove("pods", "default", name)
			c.apiOf[name] = true
			c.fake.Put("pods", c.newPod(name))
		}
	case pod == nil:
		p := c.newPod(name)
		if c.rand.IntN(8) == 0 {
			p.Spec.Containers[0].Image = "" // invalid
		}
		c.apiOf[name] = true
		c.say("api: create %s %s %s %s", name, p.UID, p.Spec.RestartPolicy, p.Annotations)
		c.fake.Put("pods", p)
	case n == 0 && pod.DeletionTimestamp == nil:
		grace := int64(c.rand.IntN(40) + 1)
		at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
		if c.rand.IntN(3) == 0 {
			pod.Finalizers = []string{"example.com/finalizer"}
		}
		c.say("api: delete %s %s, grace %d %s", name, pod.UID, grace, pod.Finalizers)
		c.fake.Put("pods", pod)
	case n == 1:
		c.say("api: force delete %s %s", name, pod.UID)
		c.fake.Remove("pods", "default", name)
	case n == 2:
		c.fake.Remove("pods", "default", name)
		p := c.newPod(name)
		c.say("api: replace %s %s by %s %s %s", name, pod.UID, p.UID, p.Spec.RestartPolicy, p.Annotations)
		c.fake.Put("pods", p)
	case n == 3:
		c.made++
		pod.Labels = map[string]string{"v": strconv.Itoa(c.made)}
		c.say("api: label %s %s", name, pod.UID)
		c.fake.Put("pods", pod)
	case n == 4 && !podspec.IsTerminalPhase(pod.Status.Phase):
		pod.Status.Phase, pod.Status.PodIP = corev1.PodUnknown, "192.0.2.1"
		c.say("api: foreign status %s %s", name, pod.UID)
		c.fake.Put("pods", pod)
	}
}

// stepMirror changes a mirror pod.
func (c *randomCluster) stepMirror(names []string) {
	name := pick(c.rand, names)
	pod := c.fake.Pod("default", name)
	if pod == nil || !podspec.IsMirror(pod) {
		return
	}
	switch c.rand.IntN(3) {
	case 0:
		c.say("mirror: force delete %s", name)
		c.fake.Remove("pods", "default", name)
	case 1:
		now := metav1.Now()
		pod.DeletionTimestamp = &now
		c.say("mirror: delete %s", name)
		c.fake.Put("pods", pod)
	case 2:
		pod.Annotations[podspec.AnnotationMirror] = "other"
		c.say("mirror: change %s", name)
		c.fake.Put("pods", pod)
	}
}

func (c *randomCluster) stepMemory(names []string) {
	name := pick(c.rand, names)
	pod := c.mem[name]
	switch n := c.rand.IntN(4); {
	case pod == nil || n == 0:
		p := c.newPod(name)
		c.say("memory: put %s %s %s %s", name, p.UID, p.Spec.RestartPolicy, p.Annotations)
		c.mem[name] = p
		c.memory.Put(p)
	case n == 1:
		p := pod.DeepCopy()
		c.made++
		p.Labels = map[string]string{"v": strconv.Itoa(c.made)}
		c.say("memory: label %s %s", name, p.UID)
		c.mem[name] = p
		c.memory.Put(p)
	case n == 2:
		c.say("memory: delete %s", name)
		delete(c.mem, name)
		c.memory.Delete("default", name)
	case n == 3:
		c.say("memory: delete and put %s %s", name, pod.UID)
		c.memory.Delete("default", name)
		time.Sleep(time.Duration(c.rand.IntN(3)) * 5 * time.Second)
		c.memory.Put(pod)
		delete(c.since, string(pod.UID))
	}
}

func (c *randomCluster) stepFile(names []string) {
	name := pick(c.rand, names)
	path := filepath.Join(c.dir, name+".yaml")
	switch n := c.rand.IntN(4); {
	case c.files[name] == "" || n == 0:
		c.made++
		content := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {v: %q}}\nspec: {terminationGracePeriodSeconds: %d, containers: [{name: c, image: registry.example/app}]}\n",
			name, strconv.Itoa(c.made), 1+c.rand.IntN(20))
		c.say("file: write %s %d", name, c.made)
		c.files[name] = content
		require.NoError(c.t, os.WriteFile(path, []byte(content), 0o600))
	case n == 1:
		c.say("file: invalid %s", name)
		require.NoError(c.t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Pod\nspec: {"), 0o600))
	case n == 2:
		c.say("file: remove %s", name)
		delete(c.files, name)
		require.NoError(c.t, os.Remove(path))
	case n == 3:
		c.say("file: write again %s", name)
		require.NoError(c.t, os.WriteFile(path, []byte(c.files[name]), 0o600))
	}
}

func (c *randomCluster) stepNode() {
	switch n := c.rand.IntN(8); {
	case n < 3 && c.process != nil:
		c.say("stop")
		c.stop()
	case n < 6 && c.process == nil:
		c.say("start")
		c.start()
	case n == 6:
		c.say("boot")
		c.stop()
		c.close()
		c.close = c.m.Boot()
		c.since = nil
		c.start()
	case n == 7:
		c.made++
		c.say("new Node")
		c.putNode()
	}
}

func (c *randomCluster) putNode() {
	n := &corev1.Node{}
	n.Name, n.UID = machineName, types.UID("uid-of-node-"+strconv.Itoa(c.made))
	c.fake.Put("nodes", n)
}

var (
	randomAPI         = []string{"a", "b", "c"}
	randomMemory      = []string{"m", "n"}
	randomFiles       = []string{"f", "g"}
	randomStaticNames = []string{"f-node", "g-node"}
)

func (c *randomCluster) step() {
	switch n := c.rand.IntN(20); {
	case n < 6:
		names := randomAPI
		if c.collides {
			names = []string{"a", "m", "n", "f-node"}
		}
		c.stepServer(names)
	case n < 9:
		c.stepMemory(randomMemory)
	case n < 12:
		c.stepFile(randomFiles)
	case n < 14:
		c.stepMirror(slices.Concat(randomMemory, randomStaticNames))
	case n < 17:
		c.stepNode()
	case n == 17:
		mode := int32(c.rand.IntN(3)) //nolint:gosec // small
		c.say("server %d", mode)
		c.setMode(mode)
	case n == 18:
		c.say("cut")
		c.fake.CutWatches(c.rand.IntN(2) == 0)
	}
	time.Sleep([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second, 25 * time.Second, 2 * time.Minute}[c.rand.IntN(7)])
}

// Whatever happens to pods, the API server and the agent, all that is wanted runs in the end, and no pod is started again
// without a reason.
func TestKube_RandomPods(t *testing.T) {
	seeds := 6
	if n, err := strconv.Atoi(os.Getenv("SUBLET_RANDOM_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range 2 * seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
				c := &randomCluster{
					t: t, m: m, fake: kubetest.NewFake(t), rand: rand.New(rand.NewPCG(uint64(seed), 1)), //nolint:gosec // a test
					memory: podsource.NewMemory(), dir: dir, collides: seed%2 == 1, apiOf: map[string]bool{}, mem: map[string]*corev1.Pod{},
					files: map[string]string{}, close: func() {},
				}
				c.fake.Intercept = c.intercept
				c.putNode()
				c.start()
				defer func() {
					c.setMode(answers)
					c.stop()
					c.close()
					if t.Failed() {
						t.Log("\n" + strings.Join(c.log, "\n"))
					}
				}()
				for range 3 {
					for range 15 {
						c.step()
					}
					c.settle()
					if t.Failed() {
						return
					}
				}
			})
		})
	}
}
