package cpumanager_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// machine is a node whose CPUs can be unplugged.
type machine struct {
	mu sync.Mutex
	t  topology.Topology
	e  error
}

// newMachine returns a machine of nodes with so many CPUs, each a core.
func newMachine(nodes, cpus int) *machine {
	t := topology.Topology{Memory: map[int]int64{}}
	for id := range nodes * cpus {
		t.CPUs = append(t.CPUs, topology.CPU{ID: id, Core: id, Socket: id / cpus, Node: id / cpus})
		t.Memory[id/cpus] = 8 << 30
	}
	return &machine{t: t}
}

func (m *machine) topology() (topology.Topology, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.t, m.e
}

// online leaves only these CPUs of the machine.
func (m *machine) online(cpus topology.Set, all topology.Topology) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.t = topology.Topology{Memory: all.Memory}
	for _, c := range all.CPUs {
		if cpus.Contains(c.ID) {
			m.t.CPUs = append(m.t.CPUs, c)
		}
	}
}

func stateFile(t *testing.T) string { return filepath.Join(t.TempDir(), "cpus.json") }

func newManager(t *testing.T, m *machine, file string, change ...func(*cpumanager.Config)) *cpumanager.Manager {
	t.Helper()
	cfg := cpumanager.Config{Topology: m.topology, Reserved: topology.NewSet(0), StateFile: file}
	for _, f := range change {
		f(&cfg)
	}
	out, err := cpumanager.New(cfg)
	require.NoError(t, err)
	return out
}

// container requests CPUs and a gigabyte of memory for each.
func container(name, cpus string) corev1.Container {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
}

func pod(uid types.UID, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(uid), UID: uid}, Spec: corev1.PodSpec{Containers: containers}}
}

// shares is a pod without CPUs of its own.
func shares(uid types.UID) *corev1.Pod { return pod(uid, container("c", "1500m")) }

// inject returns the CPUs of the first container of a pod.
func inject(t *testing.T, m *cpumanager.Manager, p *corev1.Pod) string {
	t.Helper()
	i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.NoError(t, err)
	return i.Cpuset.CPUs
}

// fakeRuntime has pods whose containers have cpusets.
type fakeRuntime struct {
	mu    sync.Mutex
	pods  []runtime.Pod
	err   error
	pod   error    // of Pod alone
	moves []string // container=CPUs@memory nodes
}

// run adds the running containers of a pod with these CPUs.
func (r *fakeRuntime) run(p *corev1.Pod, cpus string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rp := runtime.Pod{UID: p.UID}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		rp.Containers = append(rp.Containers, runtime.Container{
			ID: string(p.UID) + "/" + c.Name, Name: c.Name, State: runtime.Running,
			Resources: &runtime.Resources{CPURequest: c.Resources.Requests.Cpu(), MemoryLimit: c.Resources.Limits.Memory(), Cpuset: runtime.Cpuset{CPUs: cpus}},
		})
	}
	r.pods = append(r.pods, rp)
}

func (r *fakeRuntime) list() []runtime.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]runtime.Pod(nil), r.pods...)
}

func (r *fakeRuntime) Pods(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	out := make([]runtime.Pod, len(r.pods))
	for i := range r.pods {
		out[i].UID = r.pods[i].UID
	}
	return out, nil
}

// failPod sets the error of Pod.
func (r *fakeRuntime) failPod(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pod = nil
	if text != "" {
		r.pod = errors.New(text)
	}
}

func (r *fakeRuntime) Pod(_ context.Context, uid types.UID) (runtime.Pod, error) {
	r.mu.Lock()
	err := r.pod
	r.mu.Unlock()
	if err != nil {
		return runtime.Pod{}, err
	}
	for _, p := range r.list() {
		if p.UID == uid {
			return p, nil
		}
	}
	return runtime.Pod{}, nil
}

func (r *fakeRuntime) UpdateCpuset(_ context.Context, id string, set runtime.Cpuset) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	move := id + "=" + set.CPUs
	if set.MemoryNodes != "" {
		move += "@" + set.MemoryNodes
	}
	r.moves = append(r.moves, move)
	return nil
}

// fail sets the error of all calls.
func (r *fakeRuntime) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = nil
	if text != "" {
		r.err = errors.New(text)
	}
}

// taken returns the moves since the last call.
func (r *fakeRuntime) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.moves
	r.moves = nil
	return out
}

// start runs the Runner until the test ends.
func start(t *testing.T, m *cpumanager.Manager, rt *fakeRuntime) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r, err := m.Runner(rt, rt.list)
	require.NoError(t, err)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	return stop
}
