package deviceplugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/devices/deviceplugin"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	gpu  corev1.ResourceName = "vendor.example/gpu"
	soon                     = time.Minute // what takes milliseconds on an idle machine
)

// fakePlugin is a device plugin on a socket.
type fakePlugin struct {
	api.UnimplementedDevicePluginServer

	options *api.DevicePluginOptions
	lists   chan []*api.Device // sent by ListAndWatch, in order; closed: the stream ends
	answer  func(*api.AllocateRequest) (*api.AllocateResponse, error)

	mu      sync.Mutex
	started [][]string
}

func (p *fakePlugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return p.options, nil
}

func (p *fakePlugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		select {
		case list, ok := <-p.lists:
			if !ok {
				return errors.New("unplugged")
			}
			if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *fakePlugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	if p.answer != nil {
		return p.answer(r)
	}
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Envs:        map[string]string{"GPUS": strings.Join(ids, ",")},
		Mounts:      []*api.Mount{{ContainerPath: "/usr/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
		Devices:     []*api.DeviceSpec{{ContainerPath: "/dev/gpu0", HostPath: "/dev/null", Permissions: "rw"}},
		Annotations: map[string]string{"vendor.example/gpu": "yes"},
		CdiDevices:  []*api.CDIDevice{{Name: "vendor.example/gpu=" + ids[0]}},
	}}}, nil
}

func (p *fakePlugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	c := r.GetContainerRequests()[0]
	from := len(c.GetAvailableDeviceIDs()) - int(c.GetAllocationSize())
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: c.GetAvailableDeviceIDs()[from:]}}}, nil
}

func (p *fakePlugin) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, r.GetDevicesIds())
	return &api.PreStartContainerResponse{}, nil
}

// serve starts the plugin on a socket of the directory. The result stops it.
func (p *fakePlugin) serve(t *testing.T, dir, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	require.NoError(t, err)
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // an error if it was stopped before it began
	stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// provide is serve of a plugin that registers for gpu.
func (p *fakePlugin) provide(t *testing.T, dir, socket string) (stop func()) {
	t.Helper()
	stop = p.serve(t, dir, socket)
	require.NoError(t, register(t, dir, request(socket)))
	return stop
}

func newPlugin(ids ...string) *fakePlugin {
	p := &fakePlugin{options: &api.DevicePluginOptions{}, lists: make(chan []*api.Device, 10)}
	p.list(api.Healthy, ids...)
	return p
}

func (p *fakePlugin) list(health string, ids ...string) {
	var list []*api.Device
	for _, id := range ids {
		list = append(list, &api.Device{ID: id, Health: health, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}})
	}
	p.lists <- list
}

// socketDir returns a directory with a path that is short enough for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp") //nolint:usetesting // the name of the test would make it too long
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// start runs a Server, and returns when it listens.
func start(t *testing.T, dir string, d deviceplugin.Devices) (stop func()) {
	t.Helper()
	s, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Devices: d})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		path := filepath.Join(dir, deviceplugin.SocketName)
		info, err := os.Stat(path)
		return err == nil && info.Mode().Perm() == 0o600 && unixsocket.IsServed(t.Context(), path)
	}, soon, time.Millisecond)
	return stop
}

// register calls the registration service as a plugin does.
func register(t *testing.T, dir string, r *api.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, deviceplugin.SocketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	_, err = api.NewRegistrationClient(conn).Register(t.Context(), r, grpc.WaitForReady(true))
	return err
}

func request(endpoint string) *api.RegisterRequest {
	return &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: string(gpu), Options: &api.DevicePluginOptions{}}
}

func newManager(t *testing.T) *devices.Manager {
	t.Helper()
	m, err := devices.New(devices.Config{StateFile: filepath.Join(t.TempDir(), "devices.json")})
	require.NoError(t, err)
	return m
}

// becomes waits until as many devices are healthy.
func becomes(t *testing.T, m *devices.Manager, healthy int64) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		q := m.Allocatable()[gpu]
		assert.Equal(c, healthy, q.Value())
	}, soon, time.Millisecond)
}

func pod(name string, n string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + "1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse(n)}},
	}}}}
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := deviceplugin.New(deviceplugin.Config{Dir: "relative", DialTimeout: -1})
	for _, want := range []string{"Config.Dir", "Config.Devices", "Config.DialTimeout"} {
		require.ErrorContains(t, err, want)
	}
	_, err = deviceplugin.New(deviceplugin.Config{Dir: "/" + strings.Repeat("x", 100), Devices: newManager(t)})
	require.ErrorContains(t, err, "too long")
}

// A plugin registers, a container gets its device, the device fails, the plugin goes and
// comes back.
func TestServer_FollowsAPlugin(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	p := newPlugin("a", "b")
	stop := p.provide(t, dir, "gpu.sock")
	becomes(t, m, 2)
	require.Equal(t, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{1}}, {ID: "b", Healthy: true, NUMANodes: []int64{1}}}, m.Devices()[gpu])

	one := pod("one", "1")
	injection, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
	require.NoError(t, err)
	require.Equal(t, runtime.Injection{
		Env:         map[string]string{"GPUS": "a"},
		Mounts:      []runtime.InjectedMount{{HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu", ReadOnly: true}},
		Devices:     []runtime.InjectedDevice{{HostPath: "/dev/null", ContainerPath: "/dev/gpu0", Permissions: "rw"}},
		Annotations: map[string]string{"vendor.example/gpu": "yes"},
		CDIDevices:  []string{"vendor.example/gpu=a"},
	}, injection)
	require.NoError(t, m.PreStart(t.Context(), one, "c"))
	require.Empty(t, p.started, "the plugin did not ask for it")

	p.list("Unhealthy", "a", "b")
	becomes(t, m, 0)
	p.list(api.Healthy, "a", "b")
	becomes(t, m, 2)
	stop()
	becomes(t, m, 0)
	require.NoError(t, m.PreStart(t.Context(), one, "c"), "the container may start while the plugin is gone")

	restarted := newPlugin("a", "b", "c")
	restarted.options = &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	stop = restarted.serve(t, dir, "gpu.sock")
	require.NoError(t, register(t, dir, request("gpu.sock")), "its own options count, not those of the request")
	becomes(t, m, 3)
	require.NoError(t, m.PreStart(t.Context(), one, "c"))
	require.Equal(t, [][]string{{"a"}}, restarted.started)
	two := pod("two", "1")
	two.UID = "uid-2"
	injection, err = m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
	require.NoError(t, err)
	require.Equal(t, "c", injection.Env["GPUS"], "what the plugin prefers")
	stop()
	becomes(t, m, 0)
	require.ErrorIs(t, m.PreStart(t.Context(), one, "c"), devices.ErrNoPlugin)
}

// The list of a plugin that was replaced does not come after that of its successor.
func TestServer_ReplacesAPlugin(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	old := newPlugin("a")
	old.provide(t, dir, "old.sock")
	becomes(t, m, 1)
	newPlugin("a", "b").provide(t, dir, "new.sock")
	becomes(t, m, 2)
	old.list(api.Healthy, "a", "b", "c")
	require.Never(t, func() bool { q := m.Allocatable()[gpu]; return q.Value() != 2 }, 50*time.Millisecond, time.Millisecond)
}

// The devices of a plugin can be used until its successor has listed its own.
func TestServer_KeepsDevicesUntilTheSuccessorListsItsOwn(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	old := newPlugin("a")
	old.provide(t, dir, "old.sock")
	becomes(t, m, 1)
	for _, endpoint := range []string{"broken.sock", "slow.sock"} {
		p := &fakePlugin{options: &api.DevicePluginOptions{}, lists: make(chan []*api.Device, 1)}
		stop := p.provide(t, dir, endpoint)
		require.Never(t, func() bool { q := m.Allocatable()[gpu]; return q.Value() != 1 }, 50*time.Millisecond, time.Millisecond)
		if endpoint == "broken.sock" {
			stop()
			old.list(api.Healthy, "a", "b")
			becomes(t, m, 2)
			old.list(api.Healthy, "a")
			becomes(t, m, 1)
			continue
		}
		p.list(api.Healthy, "a", "b", "c")
		becomes(t, m, 3)
	}
	one := pod("one", "1")
	_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
	require.NoError(t, err, "of the successor, as the old one is not called any more")
	liar := newPlugin()
	liar.lists = make(chan []*api.Device, 1)
	liar.list(api.Healthy, "a", "a")
	liar.provide(t, dir, "liar.sock")
	require.Never(t, func() bool { q := m.Allocatable()[gpu]; return q.Value() != 3 }, 50*time.Millisecond, time.Millisecond)
}

func TestRegister_RejectsInvalidPlugins(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	for _, tc := range []struct {
		name   string
		change func(*api.RegisterRequest)
		want   string
	}{
		{"version", func(r *api.RegisterRequest) { r.Version = "v1" }, `version "v1"`},
		{"path", func(r *api.RegisterRequest) { r.Endpoint = "../../run/other.sock" }, "must be the name of a socket"},
		{"empty endpoint", func(r *api.RegisterRequest) { r.Endpoint = "" }, "must be the name of a socket"},
		{"own socket", func(r *api.RegisterRequest) { r.Endpoint = deviceplugin.SocketName }, "must be the name of a socket"},
		{"native resource", func(r *api.RegisterRequest) { r.ResourceName = "memory" }, "not the name of an extended resource"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request("gpu.sock")
			tc.change(r)
			err := register(t, dir, r)
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, codes.InvalidArgument, status.Code(err))
		})
	}
	require.Empty(t, m.Capacity())
}

// What a plugin says wrongly is an error that names the plugin, and nothing is allocated.
func TestAllocate_RejectsInvalidAnswers(t *testing.T) {
	one := func(c *api.ContainerAllocateResponse) func(*api.AllocateRequest) (*api.AllocateResponse, error) {
		return func(*api.AllocateRequest) (*api.AllocateResponse, error) {
			return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{c}}, nil
		}
	}
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	p := newPlugin("a")
	p.provide(t, dir, "gpu.sock")
	becomes(t, m, 1)
	for _, tc := range []struct {
		name   string
		answer func(*api.AllocateRequest) (*api.AllocateResponse, error)
		want   string
	}{
		{"error", func(*api.AllocateRequest) (*api.AllocateResponse, error) { return nil, errors.New("on fire") }, "on fire"},
		{"nothing", func(*api.AllocateRequest) (*api.AllocateResponse, error) { return &api.AllocateResponse{}, nil }, "answered for 0 containers"},
		{"mount", one(&api.ContainerAllocateResponse{Mounts: []*api.Mount{{ContainerPath: "/a", HostPath: "../b"}}}), `mount: path "../b" must be absolute`},
		{"device", one(&api.ContainerAllocateResponse{Devices: []*api.DeviceSpec{{ContainerPath: "null", HostPath: "/dev/null", Permissions: "rw"}}}), `device: path "null" must be absolute`},
		{"permissions", one(&api.ContainerAllocateResponse{Devices: []*api.DeviceSpec{{ContainerPath: "/dev/null", HostPath: "/dev/null", Permissions: "rx"}}}), `permissions "rx"`},
		{"CDI", one(&api.ContainerAllocateResponse{CdiDevices: []*api.CDIDevice{{Name: "gpu0"}}}), `CDI device "gpu0"`},
		{"variable", one(&api.ContainerAllocateResponse{Envs: map[string]string{"A=B": "c"}}), `variable "A=B"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.answer = tc.answer
			one := pod("one", "1")
			_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, filepath.Join(dir, "gpu.sock"))
			require.Empty(t, m.Allocations(one.UID))
		})
	}
}

// A plugin that lists a device twice is disconnected; the agent goes on.
func TestServer_DisconnectsALyingPlugin(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	p := newPlugin("a")
	p.provide(t, dir, "gpu.sock")
	becomes(t, m, 1)
	p.list(api.Healthy, "a", "a")
	becomes(t, m, 0)
	newPlugin("a").provide(t, dir, "mended.sock")
	becomes(t, m, 1)
}

// A plugin that registers and does not listen is rejected after DialTimeout.
func TestRegister_RejectsAbsentPlugins(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	s, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Devices: m, DialTimeout: 10 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	require.ErrorContains(t, register(t, dir, request("absent.sock")), "does not answer")
}

// A plugin that registers before it serves is waited for.
func TestRegister_WaitsForPlugins(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	early, err := net.Listen("unix", filepath.Join(dir, "gpu.sock"))
	require.NoError(t, err)
	registered := make(chan error, 1)
	go func() { registered <- register(t, dir, request("gpu.sock")) }()
	conn, err := early.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.Close()) // the first attempt fails
	require.NoError(t, early.Close())
	newPlugin("a").serve(t, dir, "gpu.sock")
	becomes(t, m, 1)
	require.NoError(t, <-registered)
}

// The sockets of plugins are removed, as by a kubelet, also those of plugins that still run: many
// register again only when theirs is gone. Those of another agent that runs stay.
func TestRun_RemovesSockets(t *testing.T) {
	dir := socketDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "stale.sock")})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	newPlugin().serve(t, dir, "live.sock")
	stop := start(t, dir, newManager(t))
	require.NoFileExists(t, filepath.Join(dir, "stale.sock"))
	require.NoFileExists(t, filepath.Join(dir, "live.sock"))
	require.FileExists(t, filepath.Join(dir, "file"))
	newPlugin().serve(t, dir, "live.sock")

	second, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Devices: newManager(t)})
	require.NoError(t, err)
	require.ErrorIs(t, second.Run(t.Context()), deviceplugin.ErrSocketInUse)
	require.FileExists(t, filepath.Join(dir, "live.sock"))
	stop()
	require.NoFileExists(t, filepath.Join(dir, deviceplugin.SocketName))
}

func TestRun_NamesTheDirectory(t *testing.T) {
	dir := socketDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	s, err := deviceplugin.New(deviceplugin.Config{Dir: filepath.Join(dir, "file"), Devices: newManager(t)})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), filepath.Join(dir, "file"))
}
