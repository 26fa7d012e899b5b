package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/runtime"
)

// What the API server rejects of one driver would keep all of them from the CSINode.
func TestRegister_RejectsWhatTheClusterRejects(t *testing.T) {
	many := map[string]string{}
	for i := range maxTopology + 1 {
		many[fmt.Sprint("key", i)] = "v"
	}
	for name, tc := range map[string]struct {
		driver *csitest.Driver
		want   string // "": it is registered
	}{
		"a long node id":    {&csitest.Driver{Name: "two.example", NodeID: strings.Repeat("x", 257)}, "the node id has 257 bytes, at most 256"},
		"an invalid name":   {&csitest.Driver{Name: "two_example"}, "CSI driver two_example cannot be in the CSINode: name: a lowercase RFC 1123 subdomain must"},
		"no label":          {&csitest.Driver{Name: "two.example", Topology: map[string]string{"zone of mine": "a"}}, `topology "zone of mine": "a" is no label`},
		"no value":          {&csitest.Driver{Name: "two.example", Topology: map[string]string{"example/zone": "a b"}}, `topology "example/zone": "a b" is no label`},
		"too much":          {&csitest.Driver{Name: "two.example", Topology: many}, "the topology has 65 segments, at most 64"},
		"a contradiction":   {&csitest.Driver{Name: "two.example", NodeID: "elsewhere"}, `topology topology.csitest.example/node: the node is at "elsewhere", but at "node" according to CSI driver csitest.example`},
		"the same topology": {&csitest.Driver{Name: "Two.example", Topology: map[string]string{csitest.TopologyKey: "node", "zone": ""}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := new(blockingNode)
			e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = node })
			d := tc.driver
			d.Dir = filepath.Join(e.dir, "two")
			p := e.plugin()
			p.Name, p.Socket, p.Endpoint = d.Name, "/two", filepath.Join(e.dir, "two.sock")
			stop, err := d.Serve(p.Endpoint, "")
			require.NoError(t, err)
			defer stop(false)
			err = e.Register(t.Context(), p)
			if tc.want == "" {
				require.NoError(t, err)
				require.Equal(t, []string{"Two.example", csitest.Name}, node.drivers)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, []string{csitest.Name}, node.drivers)
			e.restart(nil) // without a cluster
			require.NoError(t, e.Register(t.Context(), p))
		})
	}
}

// A driver that says something else of the node than before, as after a move, replaces itself.
func TestRegister_ReplacesItsTopology(t *testing.T) {
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = new(blockingNode) })
	e.stop(false)
	e.driver.NodeID = "moved"
	e.serve()
	require.Equal(t, map[string]string{csitest.TopologyKey: "moved"}, e.Topology())
}

// limitedDriver is a driver whose volume limit changes, its CSIDriver, and the cluster.
type limitedDriver struct {
	spec.NodeClient

	mu       sync.Mutex
	limit    int64
	err      error
	asked    int
	period   *int64
	reported int32 // the limit that the cluster knows
}

func (d *limitedDriver) set(limit int64, err error, period *int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit, d.err, d.period = limit, err, period
}

func (d *limitedDriver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest, ...grpc.CallOption) (*spec.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return &spec.NodeGetInfoResponse{NodeId: "node", MaxVolumesPerNode: d.limit}, d.err
}

func (d *limitedDriver) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: d.period}}, nil
}

func (d *limitedDriver) SetDrivers(list []storagev1.CSINodeDriver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = *list[0].Allocatable.Count
}

// The cluster gets to know how many volumes the node can have, as often as the CSIDriver says.
func TestManager_UpdatesVolumeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(limitedDriver)
		m, err := New(Config{Root: t.TempDir(), NodeName: "node", Drivers: d, Node: d, CallTimeout: time.Second})
		require.NoError(t, err)
		c := &client{name: "d", node: d, timeout: time.Second, info: &spec.NodeGetInfoResponse{NodeId: "node"}, maxVolumes: 8, watched: make(chan struct{})}
		m.clients["d"] = c
		m.driversChanged()
		ctx, cancel := context.WithCancel(t.Context())
		go m.watchLimit(ctx, c)
		after := func(wait time.Duration, limit int32, asked int) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			require.Equal(t, limit, d.reported)
			require.Equal(t, asked, d.asked)
		}
		after(limitCheckPeriod-time.Second, 8, 0) // the CSIDriver has no period
		period := new(int64(10))
		d.set(7, nil, period)
		after(2*time.Second, 7, 1)
		d.set(5, nil, period)
		after(8*time.Second, 7, 1)
		after(2*time.Second, 5, 2)
		d.set(0, errors.New("busy"), period)
		after(10*time.Second, 5, 3)
		d.set(6, nil, period)
		after(10*time.Second, 6, 4)
		d.set(6, nil, new(int64(1<<62)))
		after(time.Hour, 6, 4)
		cancel()
		<-c.watched
	})
}

// A driver that is replaced or gone is not asked any more.
func TestRegister_EndsVolumeLimits(t *testing.T) {
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = new(blockingNode) })
	first, err := e.client(csitest.Name)
	require.NoError(t, err)
	e.register()
	<-first.watched
	second, err := e.client(csitest.Name)
	require.NoError(t, err)
	e.Deregister(t.Context(), e.plugin())
	<-second.watched
	e.register()
}

// A limit that the attacher has met ends a pod only if the cluster gets to know the limit.
func TestMount_VolumeLimits(t *testing.T) {
	cluster := &fakeCluster{err: fmt.Errorf("no slot: %w", runtime.ErrVolumeLimit)}
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	v := e.volumeOf(newPod("1"), "v")
	asked := len(e.driver.Calls("NodeGetInfo"))
	for period, ends := range map[int64]bool{0: false, 60: true} {
		e.setCSIDriver(storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &period})
		_, err := e.Mount(t.Context(), v)
		require.EqualError(t, err, "volume is not attached: no slot: the node has as many volumes as it can")
		require.Equal(t, ends, errors.Is(err, runtime.ErrVolumeLimit))
	}
	require.Len(t, e.driver.Calls("NodeGetInfo"), asked+1)
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}
