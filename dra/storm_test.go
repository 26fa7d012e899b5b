package dra_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/dra"
)

// stormPod is one place for pods, one after the other. Its goroutine is a pod worker.
type stormPod struct {
	n       *stormNode
	index   int
	random  *rand.Rand
	made    int
	pod     *corev1.Pod // nil: none
	running bool
	ended   bool
	has     []string // CDI devices of its container that runs
}

// step does what a pod worker does next.
func (p *stormPod) step(ctx context.Context, m *dra.Manager) {
	switch {
	case p.pod == nil:
		p.made++
		var claims []string
		for _, name := range []string{"s0", "s1", fmt.Sprint("own", p.index)} {
			if p.random.IntN(2) == 0 {
				claims = append(claims, name)
			}
		}
		p.pod = pod(fmt.Sprintf("%d-%d", p.index, p.made), append(claims, "s2")...)
		p.pod.UID += "-uid"
	case p.ended:
		if err := m.Release(ctx, p.pod.UID); err == nil {
			assert.False(p.n.t, m.HasUnreleased(p.pod))
			p.pod, p.ended = nil, false
		}
	case !p.running:
		p.start(ctx, m)
		if !p.running && p.random.IntN(4) == 0 {
			p.end() // deleted while it waits
		}
	case p.random.IntN(2) == 0:
		p.inspect(ctx, m)
	case p.random.IntN(3) == 0: // its container has ended, and is created again
		has := p.has
		p.start(ctx, m)
		if p.running {
			assert.Equal(p.n.t, has, p.has, p.pod.Name)
		}
	default:
		p.end()
	}
}

// inspect compares what the agent says of a running pod.
func (p *stormPod) inspect(ctx context.Context, m *dra.Manager) {
	c := &p.pod.Spec.Containers[0]
	i, err := m.Inject(ctx, p.pod, c, true)
	if err == nil {
		assert.Equal(p.n.t, p.has, i.CDIDevices, p.pod.Name)
	}
	var reported []string
	for _, d := range m.DynamicResources(p.pod, c) {
		for _, r := range d.GetClaimResources() {
			for _, id := range r.GetCdiDevices() {
				reported = append(reported, id.GetName())
			}
		}
	}
	if err == nil {
		assert.Equal(p.n.t, p.has, reported, p.pod.Name)
	}
}

// start creates the container of a pod, if it gets its devices.
func (p *stormPod) start(ctx context.Context, m *dra.Manager) {
	p.stop()
	i, err := m.Inject(ctx, p.pod, &p.pod.Spec.Containers[0], false)
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if err != nil || p.n.killed {
		return
	}
	p.running, p.has = true, i.CDIDevices
	for _, id := range p.has {
		driver, uid, _ := strings.Cut(id, "/claim=")
		assert.True(p.n.t, p.n.prepared[driver+" "+uid], "pod %s has %s, which is not prepared", p.pod.Name, id)
		if p.n.users[types.UID(uid)] == nil {
			p.n.users[types.UID(uid)] = map[types.UID]bool{}
		}
		p.n.users[types.UID(uid)][p.pod.UID] = true
	}
}

// stop ends the container of a pod.
func (p *stormPod) stop() {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.running = false
	for _, users := range p.n.users {
		delete(users, p.pod.UID)
	}
}

func (p *stormPod) end() {
	p.stop()
	p.ended = true
}

// Pods with claims, some of which they share, come and go, and their drivers fail before and after they did what they were asked
// for, answer nonsense, hang, are upgraded and end. The cluster replaces claims, the disk is full, and the agent and the node are
// killed. No claim is released that a container uses, each container gets what is prepared, and in the end nothing is left.
func TestManager_Storm(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	dir := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same faults in each run
	n := &stormNode{
		t: t, file: filepath.Join(dir, "claims.json"), random: rand.New(rand.NewPCG(seed, 2)), //nolint:gosec // likewise
		faults: map[string]int{}, prepared: map[string]bool{}, claims: map[string]*resourcev1.ResourceClaim{}, users: map[types.UID]map[types.UID]bool{},
	}
	var pods []*stormPod
	for i := range 6 {
		n.makeClaim(fmt.Sprint("own", i))
		pods = append(pods, &stormPod{n: n, index: i, random: rand.New(rand.NewPCG(seed, uint64(i+3)))}) //nolint:gosec // likewise
	}
	names := []string{"s0", "s1", "s2"}
	for _, name := range names {
		n.makeClaim(name)
	}
	instances := n.newInstances()
	defer func() {
		for _, i := range instances {
			i.stop()
		}
	}()
	boot := 1
	const rounds = 8
	for round := range rounds + 1 {
		cluster := new(fakeCluster)
		m := newManager(t, n.file, n, func(cfg *dra.Config) {
			cfg.CallTimeout, cfg.BootID, cfg.Node = time.Minute, fmt.Sprint(boot), cluster
		})
		ctx, cancel := context.WithCancel(t.Context())
		n.mu.Lock()
		n.calm = round == rounds
		n.killed, n.kill, n.killIn = false, cancel, 0
		if !n.calm {
			n.killIn = 20 + n.random.IntN(40)
		}
		calm := n.calm
		n.mu.Unlock()
		_, err := m.PodUIDs() // reads the file, before its directory is away
		require.NoError(t, err)
		for _, i := range instances {
			if calm && i.server == nil {
				i.start(t)
			}
			i.known = i.server != nil || random.IntN(2) == 0
			if i.known {
				require.NoError(t, m.Register(ctx, i.plugin))
			}
		}
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() {
				for ctx.Err() == nil {
					if calm && p.pod == nil {
						return
					}
					if calm && !p.ended {
						p.end()
					}
					p.step(ctx, m)
					time.Sleep(time.Duration(p.random.IntN(2000)) * time.Microsecond)
				}
			})
		}
		orphans := func() {
			uids, err := m.PodUIDs()
			if err != nil {
				return
			}
			for _, uid := range uids {
				if !slices.ContainsFunc(pods, func(p *stormPod) bool { return p.pod != nil && p.pod.UID == uid }) {
					_ = m.Release(ctx, uid)
				}
			}
		}
		if calm {
			wg.Wait()
			orphans()
			n.requireNothingLeft(m)
			cluster.requireDrivers(t, "a.example", "b.example")
		} else {
			n.disturb(ctx, m, instances, names, random, dir)
			wg.Wait()
		}
		cancel()
		for _, i := range instances {
			if i.known {
				m.Deregister(context.Background(), i.plugin)
			}
			if i.server != nil { // for the calls that the killed agent does not wait for
				i.stop()
				i.start(t)
			}
		}
		n.mu.Lock()
		if n.killed {
			require.NoError(t, os.RemoveAll(n.file))
			if n.saved != nil {
				require.NoError(t, os.WriteFile(n.file, n.saved, 0o600))
			}
		}
		n.killed = false
		n.mu.Unlock()
		switch {
		case calm:
		case random.IntN(4) == 0: // the node is started again
			boot++
			for _, p := range pods {
				if p.pod != nil {
					p.stop()
				}
			}
			n.mu.Lock()
			if random.IntN(2) == 0 {
				clear(n.prepared)
			}
			n.mu.Unlock()
		default:
			for _, p := range pods { // deleted meanwhile, and only its UID is known
				if p.pod != nil && random.IntN(4) == 0 {
					p.end()
				}
			}
		}
	}
	assert.Greater(t, len(n.faults), 10, slices.Sorted(maps.Keys(n.faults)))
}

// disturb disturbs the drivers, the disk and the claims until the agent is killed.
func (n *stormNode) disturb(ctx context.Context, m *dra.Manager, instances []*instance, names []string, random *rand.Rand, dir string) {
	for ctx.Err() == nil {
		i := instances[random.IntN(len(instances))]
		switch random.IntN(8) {
		case 0, 6:
			if i.server == nil {
				i.start(n.t)
			}
		case 1:
			i.stop()
		case 2:
			if !i.known {
				assert.NoError(n.t, m.Register(ctx, i.plugin))
				i.known = true
			}
		case 3:
			if i.known {
				m.Deregister(ctx, i.plugin)
				i.known = false
			}
		case 4:
			n.mu.Lock()
			n.makeClaim(names[random.IntN(len(names))])
			n.mu.Unlock()
		case 5:
			n.mu.Lock()
			if !n.killed {
				assert.NoError(n.t, os.Rename(dir, dir+".away"))
			}
			n.mu.Unlock()
			time.Sleep(time.Millisecond)
			n.mu.Lock()
			_ = os.Rename(dir+".away", dir)
			n.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.IntN(30)) * time.Millisecond):
		}
	}
}
