package dra_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/pluginregistry"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeDriver is a DRA driver on a socket. Each claim has a device for the request "gpu" and
// one for all requests.
type fakeDriver struct {
	api.UnimplementedDRAPluginServer

	mu     sync.Mutex
	calls  []string
	answer func(method string, claim *api.Claim) (text string, err error) // text is the error of the claim
	cdi    string                                                         // instead of a valid name
	silent bool                                                           // it answers for no claim
	device string                                                         // instead of "link"
}

func (d *fakeDriver) call(ctx context.Context, method string, claim *api.Claim) (string, error) {
	d.mu.Lock()
	d.calls = append(d.calls, method+" "+claim.GetName())
	answer := d.answer
	d.mu.Unlock()
	if answer == nil {
		return "", nil
	}
	text, err := answer(method, claim)
	if errors.Is(err, errHang) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return text, err
}

var errHang = errors.New("hang")

// taken returns the calls since the last time.
func (d *fakeDriver) taken() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

// answers sets what is answered from now on.
func (d *fakeDriver) answers(text string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = func(string, *api.Claim) (string, error) { return text, err }
}

func (d *fakeDriver) NodePrepareResources(ctx context.Context, r *api.NodePrepareResourcesRequest) (*api.NodePrepareResourcesResponse, error) {
	share := "1"
	out := &api.NodePrepareResourcesResponse{Claims: map[string]*api.NodePrepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		text, err := d.call(ctx, "prepare", c)
		if err != nil {
			return nil, err
		}
		if d.silent {
			continue
		}
		cdi := d.cdi
		if cdi == "" {
			cdi = "vendor.example/gpu=" + c.GetName()
		}
		out.Claims[c.GetUid()] = &api.NodePrepareResourceResponse{Error: text, Devices: []*api.Device{
			{RequestNames: []string{"gpu/large"}, PoolName: "node", DeviceName: "gpu0", CdiDeviceIds: []string{cdi}, ShareId: &share},
			{PoolName: "node", DeviceName: cmp.Or(d.device, "link"), CdiDeviceIds: []string{"vendor.example/link=0"}},
		}}
	}
	return out, nil
}

func (d *fakeDriver) NodeUnprepareResources(ctx context.Context, r *api.NodeUnprepareResourcesRequest) (*api.NodeUnprepareResourcesResponse, error) {
	out := &api.NodeUnprepareResourcesResponse{Claims: map[string]*api.NodeUnprepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		text, err := d.call(ctx, "unprepare", c)
		if err != nil {
			return nil, err
		}
		if !d.silent {
			out.Claims[c.GetUid()] = &api.NodeUnprepareResourceResponse{Error: text}
		}
	}
	return out, nil
}

// serve serves a driver until the test ends.
func serve(t *testing.T, d *fakeDriver) pluginregistry.Plugin {
	t.Helper()
	return serveAs(t, func(s *grpc.Server) { api.RegisterDRAPluginServer(s, d) })
}

// serveAs is serve with the services that are added to the server.
func serveAs(t *testing.T, add func(*grpc.Server)) pluginregistry.Plugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // a short path for the socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "dra.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	s := grpc.NewServer()
	add(s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // an error if it was stopped before it began
	t.Cleanup(func() {
		s.Stop()
		serving.Wait()
	})
	return pluginregistry.Plugin{Socket: socket + ".reg", Type: "DRAPlugin", Name: "gpu.vendor.example", Endpoint: socket, Versions: []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}}
}

// register makes a driver known until the test ends.
func register(t *testing.T, m *dra.Manager, p pluginregistry.Plugin) {
	t.Helper()
	require.NoError(t, m.Register(t.Context(), p))
	t.Cleanup(func() { m.Deregister(context.Background(), p) })
}

// fakeClaims are those of a cluster, by name.
type fakeClaims map[string]*resourcev1.ResourceClaim

func (f fakeClaims) ResourceClaim(_ context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	if c := f[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%s/%s not found", namespace, name)
}

func claim(name string, drivers ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: "gpu", Driver: d, Pool: "node", Device: "gpu0"})
	}
	return c
}

// pod uses claims of these names in its only container, under the same names.
func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c})
	}
	return p
}

func stateFile(t *testing.T) string { return filepath.Join(t.TempDir(), "claims.json") }

func newManager(t *testing.T, file string, claims dra.Claims, change ...func(*dra.Config)) *dra.Manager {
	t.Helper()
	cfg := dra.Config{Claims: claims, StateFile: file, CallTimeout: time.Minute}
	for _, f := range change {
		f(&cfg)
	}
	m, err := dra.New(cfg)
	require.NoError(t, err)
	return m
}

// inject returns the CDI devices of the first container of a pod.
func inject(t *testing.T, m *dra.Manager, p *corev1.Pod, running bool) []string {
	t.Helper()
	i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], running)
	require.NoError(t, err)
	return i.CDIDevices
}

// injectErr returns why it does not get them.
func injectErr(t *testing.T, m *dra.Manager, p *corev1.Pod) error {
	t.Helper()
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.Error(t, err)
	return err
}

// stored returns the names of the stored claims.
func stored(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var state struct{ Claims []struct{ Name string } }
	require.NoError(t, json.Unmarshal(text, &state))
	names := []string{}
	for _, c := range state.Claims {
		names = append(names, c.Name)
	}
	return names
}
