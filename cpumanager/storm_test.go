package cpumanager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// stormPod is a pod whose containers start one after the other, end, and are resized.
type stormPod struct {
	pod     *corev1.Pod
	next    int // the container that is created next
	running map[string]topology.Set
}

// containers are those of a pod in the order of their start.
func (p *stormPod) containers() []*corev1.Container {
	var all []*corev1.Container
	for i := range p.pod.Spec.InitContainers {
		all = append(all, &p.pod.Spec.InitContainers[i])
	}
	for i := range p.pod.Spec.Containers {
		all = append(all, &p.pod.Spec.Containers[i])
	}
	return all
}

// together returns how many CPUs the pod was scheduled with.
func (p *stormPod) together() int64 {
	return topology.MostTogether(p.pod, func(c *corev1.Container) int64 { return int64(cpumanager.ExclusiveCPUs(p.pod, c)) })
}

// stormNode is a machine with such pods.
type stormNode struct {
	t         *testing.T
	random    *rand.Rand
	machine   *machine
	all       topology.Topology
	file      string
	cfg       cpumanager.Config
	m         *cpumanager.Manager
	admit     *topology.Manager
	pods      map[types.UID]*stormPod
	made      int
	fullCores bool // is required, of which each container requests some
	unplugged bool // CPUs were offline, or a container was resized: what pods have may be more than together
}

func (n *stormNode) restart() {
	n.cfg.Options = cpumanager.Options{FullPCPUsOnly: n.fullCores, DistributeCPUsAcrossNUMA: n.random.IntN(2) > 0, StrictCPUReservation: n.random.IntN(2) > 0}
	n.cfg.MemoryAffinity = n.random.IntN(2) > 0
	n.m = newManager(n.t, n.machine, n.file, func(cfg *cpumanager.Config) {
		n.cfg.Topology, n.cfg.StateFile = cfg.Topology, cfg.StateFile
		*cfg = n.cfg
	})
	policies := []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}
	scopes := []topology.Scope{topology.ContainerScope, topology.PodScope}
	n.admit = newAdmitter(n.t, n.machine, policies[n.random.IntN(len(policies))], scopes[n.random.IntN(2)], n.m)
	for _, p := range n.sorted() { // as the sync loop does with pods that it has adopted or admitted
		if n.admit.Admit(p.pod, n.others(p.pod.UID)).Admitted {
			continue
		}
		if len(p.running) == 0 {
			n.remove(p)
		}
		n.unplugged = true // another policy does not admit it, and what was set aside for it is free
	}
}

func (n *stormNode) sorted() (list []*stormPod) {
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		list = append(list, n.pods[uid])
	}
	return list
}

func (n *stormNode) others(uid types.UID) (others []*corev1.Pod) {
	for _, p := range n.pods {
		if p.pod.UID != uid {
			others = append(others, p.pod)
		}
	}
	return others
}

func (n *stormNode) remove(p *stormPod) {
	require.NoError(n.t, n.m.Release(n.t.Context(), p.pod.UID))
	delete(n.pods, p.pod.UID)
}

// cpus returns how many CPUs a container requests.
func (n *stormNode) cpus() string {
	if n.fullCores {
		return fmt.Sprint(2 + 2*n.random.IntN(2))
	}
	return fmt.Sprint(1 + n.random.IntN(4))
}

// add admits a pod with some containers.
func (n *stormNode) add() {
	n.made++
	p := pod(types.UID(fmt.Sprint(n.made)))
	for i := range n.random.IntN(4) {
		c := container(fmt.Sprint("i", i), n.cpus())
		if n.random.IntN(2) == 0 {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range 1 + n.random.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("c", i), n.cpus()))
	}
	if n.admit.Admit(p, n.others(p.UID)).Admitted {
		n.pods[p.UID] = &stormPod{pod: p, running: map[string]topology.Set{}}
	}
}

// create creates a container.
func (n *stormNode) create(p *stormPod, c *corev1.Container) bool {
	delete(p.running, c.Name)
	i, err := n.m.Inject(n.t.Context(), p.pod, c, false)
	if err != nil {
		require.ErrorIs(n.t, err, cpumanager.ErrNotEnough)
		require.True(n.t, n.unplugged, "%s of pod %s: %v", c.Name, p.pod.UID, err)
		return false
	}
	cpus, err := topology.ParseSet(i.Cpuset.CPUs)
	require.NoError(n.t, err)
	require.Equal(n.t, c.Resources.Requests.Cpu().Value(), int64(cpus.Len()), "%s of pod %s has %s", c.Name, p.pod.UID, cpus)
	require.Equal(n.t, cpus.String(), n.m.CPUs(p.pod.UID, c.Name).String())
	p.running[c.Name] = cpus
	return true
}

// advance creates the next container of a pod; ordinary init containers before it have ended.
func (n *stormNode) advance(p *stormPod) {
	all := p.containers()
	if p.next == len(all) {
		c := all[n.random.IntN(len(all))]
		if _, ok := p.running[c.Name]; ok {
			n.create(p, c) // it has ended, and starts again
		}
		return
	}
	for i, c := range all[:p.next] {
		if i < len(p.pod.Spec.InitContainers) && c.RestartPolicy == nil {
			delete(p.running, c.Name)
		}
	}
	if n.create(p, all[p.next]) {
		p.next++
	}
}

// resize resizes a container that runs.
func (n *stormNode) resize(p *stormPod) {
	resized := &stormPod{pod: p.pod.DeepCopy()}
	all := resized.containers()
	c := all[n.random.IntN(len(all))]
	if _, ok := p.running[c.Name]; !ok || c.RestartPolicy == nil && c.Name[0] == 'i' {
		return
	}
	n.unplugged = true
	c.Resources = container(c.Name, n.cpus()).Resources
	if n.admit.Admit(resized.pod, n.others(p.pod.UID)).Admitted {
		p.pod = resized.pod
	}
	for name := range p.running {
		i := slices.IndexFunc(p.containers(), func(c *corev1.Container) bool { return c.Name == name })
		got, err := n.m.Inject(n.t.Context(), p.pod, p.containers()[i], true)
		require.NoError(n.t, err)
		if p.running[name], err = topology.ParseSet(got.Cpuset.CPUs); err != nil {
			n.t.Fatal(err)
		}
	}
}

// plug takes CPUs offline, or brings all of them back.
func (n *stormNode) plug() {
	n.unplugged = true
	cpus := n.all.Online()
	if n.random.IntN(2) == 0 {
		for range 2 {
			ids := cpus.Minus(n.cfg.Reserved).IDs()
			cpus = cpus.Minus(topology.NewSet(ids[n.random.IntN(len(ids))]))
		}
	}
	n.machine.online(cpus, n.all)
	n.restart()
}

func (n *stormNode) check() {
	var used topology.Set
	together := int64(0)
	for _, p := range n.sorted() {
		for _, name := range slices.Sorted(maps.Keys(p.running)) {
			cpus := p.running[name]
			require.Zero(n.t, cpus.Intersect(used).Len(), "CPUs %s of %s of pod %s are those of another container", cpus, name, p.pod.UID)
			require.Zero(n.t, cpus.Intersect(n.cfg.Reserved).Len(), "a reserved CPU")
			require.True(n.t, cpus.IsSubset(n.m.CPUs(p.pod.UID, name)), "%s of pod %s runs on %s, and has %s", name, p.pod.UID, cpus, n.m.CPUs(p.pod.UID, name))
			used = used.Union(cpus)
		}
		together += p.together()
	}
	shared, err := topology.ParseSet(inject(n.t, n.m, shares("s")))
	require.NoError(n.t, err)
	require.NotZero(n.t, shared.Len())
	require.Zero(n.t, shared.Intersect(used).Len(), "shared and exclusive")
	exclusive := int64(0)
	_, byNode := n.m.Usage()
	for _, count := range byNode {
		exclusive += int64(count)
	}
	if !n.unplugged {
		require.LessOrEqual(n.t, exclusive, together, "pods have more than they were scheduled with")
	}
}

// Init containers, sidecars and others of pods come and go, are resized and started again, CPUs are unplugged, and the agent starts
// again with other options. No CPU is that of two containers that run, each has as many as it was admitted with, and in the end all
// are free. // CU-1
func TestManager_Storm(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // the same in each run
		machine := newSMT(1+random.IntN(2), 2, 3+random.IntN(3))
		n := &stormNode{t: t, random: random, machine: machine, all: machine.t, file: restoredFile(t), pods: map[types.UID]*stormPod{}}
		n.fullCores, n.cfg.Reserved = seed%5 == 0, topology.NewSet(0, n.all.Online().Len()/2)
		n.restart()
		for range 80 {
			var some *stormPod
			if list := n.sorted(); len(list) > 0 {
				some = list[random.IntN(len(list))]
			}
			switch what := random.IntN(20); {
			case what == 0:
				n.restart()
			case what == 1 && seed%2 == 0:
				n.plug()
			case what == 2 && some != nil: // its sandbox is lost
				some.next = 0
				clear(some.running)
			case what == 3 && some != nil && seed%4 > 1:
				n.resize(some)
			case what < 6 && some != nil:
				n.remove(some)
			case what < 9 || some == nil:
				n.add()
			default:
				n.advance(some)
			}
			n.check()
		}
		for _, p := range n.sorted() {
			n.remove(p)
		}
		n.machine.online(n.all.Online(), n.all)
		n.restart()
		free, _ := n.m.Usage()
		require.Equal(t, n.all.Online().Minus(n.cfg.Reserved).Len(), free)
		uids, err := n.m.PodUIDs()
		require.NoError(t, err)
		require.Empty(t, uids)
	}
}
