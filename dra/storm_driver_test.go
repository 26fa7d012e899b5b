package dra_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/pluginregistry"
)

// stormNode is what outlives the agent: the claims of the cluster, what drivers have prepared, and which pods run.
type stormNode struct {
	t    *testing.T
	file string

	mu       sync.Mutex
	random   *rand.Rand
	calm     bool // nothing fails any more
	faults   map[string]int
	prepared map[string]bool                      // by driver and UID of the claim
	claims   map[string]*resourcev1.ResourceClaim // by name
	users    map[types.UID]map[types.UID]bool     // of a claim: pods that run with it
	made     int                                  // claims so far
	killIn   int                                  // calls until the agent is killed; 0: it is not
	killed   bool
	kill     context.CancelFunc
	saved    []byte // the state file at that moment
}

// oneOf reports whether something happens that happens once of n times. n.mu is locked.
func (n *stormNode) oneOf(times int) bool { return !n.calm && n.random.IntN(times) == 0 }

// fault returns the fault of a call, if any. n.mu is locked.
func (n *stormNode) fault(method string) string {
	if n.calm || n.random.IntN(3) > 0 {
		return ""
	}
	kinds := []string{"fails", "claim fails", "loses its answer", "hangs", "hangs after", "answers for another", "answers for none"}
	if method == "prepare" {
		kinds = append(kinds, "bad name")
	}
	kind := kinds[n.random.IntN(len(kinds))]
	n.faults[method+" "+kind]++
	return kind
}

// stormDriver is one instance of a driver. All of one name share what is prepared.
type stormDriver struct {
	api.UnimplementedDRAPluginServer

	n    *stormNode
	name string
}

var errUnavailable = errors.New("unavailable")

// call does what a driver does for a claim, before or after it fails. fault is what the answer is to be.
func (d *stormDriver) call(ctx context.Context, method string, c *api.Claim) (fault string, err error) {
	n := d.n
	n.mu.Lock()
	if n.killIn > 0 {
		if n.killIn--; n.killIn == 0 {
			n.killed = true
			n.saved = n.stateFile()
			n.kill()
		}
	}
	fault = n.fault(method)
	if n.killed {
		fault = "hangs"
		if n.killIn == 0 && n.random.IntN(2) == 0 {
			fault = "hangs after" // the last call, which has reached the driver
		}
		n.killIn = -1
	}
	if ctx.Err() != nil {
		fault = "hangs" // it came too late
	}
	if fault != "fails" && fault != "claim fails" && fault != "hangs" {
		key := d.name + " " + c.GetUid()
		if method == "prepare" {
			n.prepared[key] = true
		} else {
			for pod := range n.users[types.UID(c.GetUid())] {
				n.t.Errorf("claim %s %s is released, which pod %s uses", c.GetName(), c.GetUid(), pod)
			}
			delete(n.prepared, key)
		}
	}
	n.mu.Unlock()
	switch fault {
	case "fails", "loses its answer":
		return fault, errUnavailable
	case "hangs", "hangs after":
		return fault, hang(ctx)
	}
	return fault, nil
}

func (d *stormDriver) NodePrepareResources(ctx context.Context, r *api.NodePrepareResourcesRequest) (*api.NodePrepareResourcesResponse, error) {
	out := map[string]*api.NodePrepareResourceResponse{}
	for _, c := range r.GetClaims() {
		fault, err := d.call(ctx, "prepare", c)
		if err != nil {
			return nil, err
		}
		a := &api.NodePrepareResourceResponse{Devices: []*api.Device{{PoolName: "node", DeviceName: "d", CdiDeviceIds: []string{d.name + "/claim=" + c.GetUid()}}}}
		switch uid := c.GetUid(); fault {
		case "claim fails":
			out[uid] = &api.NodePrepareResourceResponse{Error: "busy"}
		case "answers for another":
			out["other"] = a
		case "answers for none":
		case "bad name":
			a.Devices[0].CdiDeviceIds = []string{"name"}
			out[uid] = a
		default:
			out[uid] = a
		}
	}
	return &api.NodePrepareResourcesResponse{Claims: out}, nil
}

func (d *stormDriver) NodeUnprepareResources(ctx context.Context, r *api.NodeUnprepareResourcesRequest) (*api.NodeUnprepareResourcesResponse, error) {
	out := map[string]*api.NodeUnprepareResourceResponse{}
	for _, c := range r.GetClaims() {
		fault, err := d.call(ctx, "unprepare", c)
		if err != nil {
			return nil, err
		}
		switch uid := c.GetUid(); fault {
		case "claim fails":
			out[uid] = &api.NodeUnprepareResourceResponse{Error: "busy"}
		case "answers for another":
			out["other"] = &api.NodeUnprepareResourceResponse{}
		case "answers for none":
		default:
			out[uid] = &api.NodeUnprepareResourceResponse{}
		}
	}
	return &api.NodeUnprepareResourcesResponse{Claims: out}, nil
}

// hang ends before the agent gives a call up: what it does not wait for any more could have its effect at any later time.
func hang(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Millisecond):
	}
	return status.Error(codes.DeadlineExceeded, "no answer")
}

// stateFile returns what is in the state file, also while its directory is away.
func (n *stormNode) stateFile() []byte {
	text, err := os.ReadFile(n.file)
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(filepath.Dir(n.file)+".away", filepath.Base(n.file)))
	}
	return text
}

// ResourceClaim implements dra.Claims.
func (n *stormNode) ResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	n.mu.Lock()
	c := n.claims[name]
	hangs, fails := n.oneOf(20), n.oneOf(10)
	n.mu.Unlock()
	switch {
	case hangs:
		return nil, hang(ctx)
	case fails:
		return nil, errUnavailable
	}
	return fakeClaims{name: c}.ResourceClaim(ctx, namespace, name)
}

// makeClaim makes a claim, or another one of its name. n.mu is locked.
func (n *stormNode) makeClaim(name string) {
	drivers := [][]string{{"a.example"}, {"b.example"}, {"a.example", "b.example"}}[n.random.IntN(3)]
	c := claim(name, drivers...)
	n.made++
	c.UID = types.UID(fmt.Sprintf("%s-%d", name, n.made))
	n.claims[name] = c
}

// instance serves a driver until the test ends, or it is stopped. It may be started again at the same place.
type instance struct {
	plugin pluginregistry.Plugin
	driver *stormDriver
	server *grpc.Server
	done   chan struct{}
	known  bool // to the agent
}

func (i *instance) start(t *testing.T) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", i.plugin.Endpoint)
	require.NoError(t, err)
	i.server, i.done = grpc.NewServer(grpc.WaitForHandlers(true)), make(chan struct{})
	api.RegisterDRAPluginServer(i.server, i.driver)
	go func(s *grpc.Server) { defer close(i.done); _ = s.Serve(l) }(i.server)
}

// stop ends the driver. No call that it has received has an effect later.
func (i *instance) stop() {
	if i.server != nil {
		i.server.Stop()
		<-i.done
		i.server = nil
	}
}

// newInstances returns two instances of each driver, as during an upgrade.
func (n *stormNode) newInstances() []*instance {
	dir, err := os.MkdirTemp("", "dra") // a short path for the sockets
	require.NoError(n.t, err)
	n.t.Cleanup(func() { assert.NoError(n.t, os.RemoveAll(dir)) })
	var list []*instance
	for i := range 4 {
		name := []string{"a.example", "b.example"}[i%2]
		socket := filepath.Join(dir, fmt.Sprint(i))
		list = append(list, &instance{
			driver: &stormDriver{n: n, name: name},
			plugin: pluginregistry.Plugin{Socket: socket + ".reg", Type: "DRAPlugin", Name: name, Endpoint: socket, Versions: []string{"v1.DRAPlugin"}},
		})
	}
	return list
}

// requireNothingLeft fails if a driver has something prepared, or the agent has stored something.
func (n *stormNode) requireNothingLeft(m *dra.Manager) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	assert.Empty(n.t, slices.Sorted(maps.Keys(n.prepared)))
	uids, err := m.PodUIDs()
	require.NoError(n.t, err)
	assert.Empty(n.t, uids)
	assert.Empty(n.t, stored(n.t, n.file))
	assert.Equal(n.t, map[string]int{dra.AnyDriver: 0}, m.ClaimsInUse())
}
