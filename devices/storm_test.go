package devices_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// stormNode is a node whose plugins fail.
type stormNode struct {
	t    *testing.T
	dir  string
	file string

	mu      sync.Mutex
	random  *rand.Rand
	calm    bool
	m       *devices.Manager
	admit   *topology.Manager
	plugin  *stormPlugin
	listed  map[string]bool            // healthy, by the id of those that the plugin lists
	running map[string]map[string]bool // the devices of containers that run
	pods    map[types.UID]*corev1.Pod
}

// stormPlugin fails, hangs and lies.
type stormPlugin struct{ n *stormNode }

func (n *stormNode) intN(k int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.IntN(k)
}

// fails blocks or returns an error at random.
func (n *stormNode) fails(ctx context.Context) error {
	kind := n.intN(6)
	n.mu.Lock()
	calm := n.calm
	n.mu.Unlock()
	switch {
	case calm:
	case kind == 0:
		return errors.New("unavailable")
	case kind == 1:
		<-ctx.Done()
		return ctx.Err()
	case kind == 2:
		time.Sleep(time.Duration(n.intN(3000)) * time.Millisecond)
	}
	return nil
}

func (p *stormPlugin) Allocate(ctx context.Context, ids []string) (runtime.Injection, error) {
	if err := p.n.fails(ctx); err != nil {
		return runtime.Injection{}, err
	}
	return runtime.Injection{Env: map[string]string{"GPUS": strings.Join(ids, ",")}}, nil
}

// Choose prefers devices that it was not asked for, too many, and some twice.
func (p *stormPlugin) Choose(ctx context.Context, available, include []string, n int) ([]string, error) {
	if err := p.n.fails(ctx); err != nil {
		return nil, err
	}
	out := []string{"none", "d0", "d1", "d2"}
	p.n.mu.Lock()
	p.n.random.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
	p.n.mu.Unlock()
	return slices.Concat(out, available, available), nil
}

// start starts the agent again.
func (n *stormNode) start() {
	m := newManager(n.t, n.file, func(cfg *devices.Config) {
		cfg.NUMANodes, cfg.AllocateTimeout = topology.NewSet(0, 1), 2*time.Second
	})
	_, err := m.PodUIDs() // reads the file
	require.NoError(n.t, err)
	policies := []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}
	admit, err := topology.New(topology.Config{Policy: policies[n.intN(4)], Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{m}})
	require.NoError(n.t, err)
	n.mu.Lock()
	n.m, n.admit, n.plugin = m, admit, &stormPlugin{n}
	n.mu.Unlock()
}

// list has the plugin list its devices: some unhealthy, some gone, some at other NUMA nodes.
func (n *stormNode) list() {
	n.mu.Lock()
	if n.random.IntN(2) == 0 {
		n.plugin = &stormPlugin{n} // registered again
	}
	var list []devices.Device
	n.listed = map[string]bool{}
	for i := range 10 {
		if n.calm || n.random.IntN(6) > 0 {
			d := devices.Device{ID: fmt.Sprint("d", i), Healthy: n.calm || n.random.IntN(6) > 0}
			if n.random.IntN(4) > 0 {
				d.NUMANodes = []int64{int64(n.random.IntN(2))}
			}
			list, n.listed[d.ID] = append(list, d), d.Healthy
		}
	}
	m, plugin := n.m, n.plugin
	n.mu.Unlock()
	require.NoError(n.t, m.Update(gpu, plugin, list))
}

func (n *stormNode) others(uid types.UID) (others []*corev1.Pod) {
	for _, p := range n.pods {
		if p.UID != uid {
			others = append(others, p)
		}
	}
	return others
}

// run runs pods one after the other until ctx is done.
func (n *stormNode) run(ctx context.Context, worker int) {
	for k := 0; ctx.Err() == nil; k++ {
		p := pod(fmt.Sprint(worker, "-", k, "-", n.intN(1<<30)))
		for i := range n.intN(3) {
			c := container(fmt.Sprint("i", i), int64(1+n.intN(3)))
			if n.intN(2) == 0 {
				always := corev1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
		for i := range 1 + n.intN(2) {
			p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("c", i), int64(1+n.intN(3))))
		}
		n.mu.Lock()
		admitted := n.admit.Admit(p, n.others(p.UID)).Admitted
		if admitted {
			n.pods[p.UID] = p
		}
		n.mu.Unlock()
		if !admitted {
			time.Sleep(time.Second)
			continue
		}
		n.runPod(ctx, p)
		n.end(ctx, p)
	}
}

// runPod starts the containers of a pod, and some of them again.
func (n *stormNode) runPod(ctx context.Context, p *corev1.Pod) {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !n.startContainer(ctx, p, c) {
			return
		}
		if c.RestartPolicy == nil {
			n.stop(p, c)
		}
	}
	for i := range p.Spec.Containers {
		if !n.startContainer(ctx, p, &p.Spec.Containers[i]) {
			return
		}
	}
	for range n.intN(5) {
		time.Sleep(time.Duration(n.intN(3000)) * time.Millisecond)
		c := &p.Spec.Containers[n.intN(len(p.Spec.Containers))]
		if n.intN(2) == 0 {
			n.stop(p, c)
			if !n.startContainer(ctx, p, c) {
				return
			}
			continue
		}
		got, err := n.m.Inject(ctx, p, c, true)
		require.NoError(n.t, err)
		n.mu.Lock()
		assert.Len(n.t, strings.Split(got.Env["GPUS"], ","), len(n.running[key(p, c)]))
		for id := range strings.SplitSeq(got.Env["GPUS"], ",") {
			assert.True(n.t, n.running[key(p, c)][id], "%s of a container that runs", id)
		}
		n.mu.Unlock()
	}
}

func key(p *corev1.Pod, c *corev1.Container) string { return p.Name + "/" + c.Name }

// startContainer tries a few times to create a container.
func (n *stormNode) startContainer(ctx context.Context, p *corev1.Pod, c *corev1.Container) bool {
	for range 5 {
		got, err := n.m.Inject(ctx, p, c, false)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			time.Sleep(time.Second)
			continue
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		ids := strings.Split(got.Env["GPUS"], ",")
		q := c.Resources.Limits[gpu]
		assert.Len(n.t, ids, int(q.Value()))
		has := map[string]bool{}
		for _, id := range ids {
			for other, used := range n.running {
				assert.False(n.t, used[id], "%s of %s is that of %s", id, key(p, c), other)
			}
			assert.False(n.t, has[id], "%s twice", id)
			has[id] = true
		}
		n.running[key(p, c)] = has
		return true
	}
	return false
}

func (n *stormNode) stop(p *corev1.Pod, c *corev1.Container) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.running, key(p, c))
}

// end ends a pod whose containers run.
func (n *stormNode) end(ctx context.Context, p *corev1.Pod) {
	if ctx.Err() != nil {
		return // the agent is killed, and the containers go on
	}
	for i := range p.Spec.InitContainers {
		n.stop(p, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		n.stop(p, &p.Spec.Containers[i])
	}
	assert.NoError(n.t, n.m.Release(context.WithoutCancel(ctx), p.UID))
	n.mu.Lock()
	delete(n.pods, p.UID)
	n.mu.Unlock()
}

// cleanUp releases what is stored of pods that do not exist any more: their release could not be stored.
func (n *stormNode) cleanUp() {
	uids, err := n.m.PodUIDs()
	require.NoError(n.t, err)
	for _, uid := range uids {
		if n.pods[uid] == nil {
			require.NoError(n.t, n.m.Release(n.t.Context(), uid))
		}
	}
}

// Pods with containers of all kinds come and go, while plugins fail, hang, lie, list other devices and register again, the disk is
// full and the agent is killed. No device is that of two containers that run, a container keeps its own, and in the end all are free.
func TestManager_Storm(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) { storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	n := &stormNode{t: t, dir: dir, file: filepath.Join(dir, "devices.json"), random: rand.New(rand.NewPCG(seed, 4)), running: map[string]map[string]bool{}, pods: map[types.UID]*corev1.Pod{}} //nolint:gosec // the same in each run
	for range 5 {
		n.start()
		n.list()
		ctx, kill := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() { n.run(ctx, worker) })
		}
		for range 40 {
			time.Sleep(time.Duration(n.intN(2000)) * time.Millisecond)
			switch n.intN(8) {
			case 0:
				n.m.Disconnect(gpu, n.plugin)
			case 1:
				require.NoError(t, os.Rename(dir, dir+".away"))
				time.Sleep(time.Second)
				require.NoError(t, os.Rename(dir+".away", dir))
			default:
				n.list()
			}
		}
		text, err := os.ReadFile(n.file)
		require.NoError(t, err)
		kill()
		n.mu.Lock()
		left := maps.Clone(n.pods)
		n.mu.Unlock()
		wg.Wait()
		require.NoError(t, os.WriteFile(n.file, text, 0o600))
		n.start()
		n.list()
		for _, uid := range slices.Sorted(maps.Keys(left)) { // those of the agent before, as orphans or as pods
			p := left[uid]
			for i := range p.Spec.Containers {
				c := &p.Spec.Containers[i]
				if has := n.running[key(p, c)]; has != nil {
					got, err := n.m.Inject(t.Context(), p, c, true)
					require.NoError(t, err)
					assert.Len(t, strings.Split(got.Env["GPUS"], ","), len(has), "after a restart")
				}
			}
			n.end(t.Context(), p)
		}
		n.cleanUp()
	}
	n.calm = true
	n.start()
	n.list()
	uids, err := n.m.PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)
	q := n.m.Allocatable()[gpu]
	require.Equal(t, int64(10), q.Value())
	p := pod("last", container("c", 10))
	require.Equal(t, "d0,d1,d2,d3,d4,d5,d6,d7,d8,d9", inject(t, n.m, p))
}
