package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logtest"
)

// newHostPorts returns host ports without listeners, and their log.
func newHostPorts(t *testing.T, dial func(context.Context, int32) (net.Conn, error)) (*hostPorts, *logtest.Buffer) {
	log := new(logtest.Buffer)
	h := &hostPorts{dial: dial, log: slog.New(slog.NewTextHandler(log, nil))}
	h.ctx, h.end = context.WithCancel(t.Context())
	t.Cleanup(h.close)
	return h, log
}

// fakeListener is a listener whose connections are those of a function.
type fakeListener struct {
	net.Listener
	accept func() (net.Conn, error)
}

func (l fakeListener) Accept() (net.Conn, error) { return l.accept() }
func (l fakeListener) Addr() net.Addr            { return &net.TCPAddr{} }

// accepts returns a listener that accepts connections and fails with errors, in order, and
// is closed then.
func accepts(results ...any) fakeListener {
	return fakeListener{accept: func() (net.Conn, error) {
		if len(results) == 0 {
			return nil, net.ErrClosed
		}
		next := results[0]
		results = results[1:]
		if err, failed := next.(error); failed {
			return nil, err
		}
		return next.(net.Conn), nil
	}}
}

// A simulated container does not listen on this machine, as a host process does.
func TestHostPorts_ServeThePortOfTheContainer(t *testing.T) {
	pod := &v1.PodSandboxConfig{PortMappings: []*v1.PortMapping{
		{HostPort: 80, ContainerPort: 80}, {HostPort: 81, ContainerPort: 80}, {HostPort: 53, ContainerPort: 53, Protocol: v1.Protocol_UDP}, {ContainerPort: 82},
	}}
	numbers := func(local bool) (ports []int32) {
		for _, m := range servedPorts(pod, local) {
			ports = append(ports, m.GetHostPort())
		}
		return ports
	}
	assert.Equal(t, []int32{80, 81}, numbers(false))
	assert.Equal(t, []int32{81}, numbers(true))
	pod.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}}}
	assert.Empty(t, numbers(false))
}

func TestHostPorts_AcceptAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := net.Pipe()
		pod, dialed := net.Pipe()
		h, _ := newHostPorts(t, func(_ context.Context, port int32) (net.Conn, error) {
			assert.Equal(t, int32(80), port)
			return dialed, nil
		})
		h.accept(accepts(syscall.EMFILE, accepted), 80)
		go func() {
			_, err := io.WriteString(client, "hello")
			assert.NoError(t, err)
			assert.NoError(t, client.Close())
		}()
		b, err := io.ReadAll(pod)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(b))
		require.NoError(t, pod.Close())
	})
}

func TestHostPorts_PauseAfterFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after int // failures before and after a connection
		took          time.Duration
		warnings      int
	}{
		"none":        {0, 0, 0, 0},
		"one":         {1, 0, 5 * time.Millisecond, 1},
		"two streaks": {3, 2, (5 + 10 + 20 + 5 + 10) * time.Millisecond, 2},
		"many":        {8 + maxForwarded, 0, 1275*time.Millisecond + maxForwarded*time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, log := newHostPorts(t, func(context.Context, int32) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
				_, accepted := net.Pipe()
				failures := func(n int) []any { return slices.Repeat([]any{syscall.EMFILE}, n) }
				start := time.Now()
				h.accept(accepts(slices.Concat(failures(tc.before), []any{accepted}, failures(tc.after))...), 80)
				assert.Equal(t, tc.took, time.Since(start))
				assert.Equal(t, tc.warnings, strings.Count(log.String(), "level=WARN"), log.String())
			})
		})
	}
}

func TestHostPorts_EndInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newHostPorts(t, nil)
		ended := make(chan time.Time, 1)
		go func() {
			h.accept(fakeListener{accept: func() (net.Conn, error) { return nil, syscall.EMFILE }}, 80)
			ended <- time.Now()
		}()
		synctest.Wait()
		require.Empty(t, ended, "it pauses")
		at := time.Now()
		h.end()
		assert.Equal(t, at, <-ended)
	})
}

func TestHostPorts_LimitTheirConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, ended := make(chan net.Conn, maxForwarded+2), make(chan struct{})
		served := make(chan net.Conn, cap(clients))
		h, _ := newHostPorts(t, func(context.Context, int32) (net.Conn, error) {
			pod, dialed := net.Pipe()
			served <- pod
			return dialed, nil
		})
		go func() {
			defer close(ended)
			h.accept(fakeListener{accept: func() (net.Conn, error) {
				if len(clients) == cap(clients) {
					return nil, net.ErrClosed
				}
				client, accepted := net.Pipe()
				clients <- client
				return accepted, nil
			}}, 80)
		}()
		synctest.Wait()
		require.Len(t, served, maxForwarded)
		require.NoError(t, (<-clients).Close())
		synctest.Wait()
		require.Len(t, served, maxForwarded+1, "one has ended, and the next one is served")
		h.end()
		<-ended
	})
}

// podDialer is an executor whose pods listen on an address of this machine.
type podDialer struct {
	Executor
	address string
}

func (d podDialer) DialPod(ctx context.Context, _ *v1.PodSandboxConfig, _ int32) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", d.address)
}

// openAnyPort opens a host port of a pod and returns its address.
func openAnyPort(t *testing.T, pod net.Listener) string {
	t.Helper()
	r, err := New(Config{Executor: podDialer{address: pod.Addr().String()}, HostPorts: true})
	require.NoError(t, err)
	for port := int32(20000); port < 21000; port++ { // the system gives none of these to others
		h, err := r.openPorts(t.Context(), &sandbox{config: &v1.PodSandboxConfig{
			PortMappings: []*v1.PortMapping{{HostIp: "127.0.0.1", HostPort: port, ContainerPort: 80}},
		}})
		if err == nil {
			t.Cleanup(h.close)
			return fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	require.FailNow(t, "no port is free")
	return ""
}

// A pod that has sent all still gets what the client sends.
func TestHostPorts_EndEachDirectionByItself(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	client, err := net.Dial("tcp", openAnyPort(t, lis))
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	pod, err := lis.Accept()
	require.NoError(t, err)
	defer func() { _ = pod.Close() }()
	for _, ends := range [][2]net.Conn{{pod, client}, {client, pod}} {
		require.NoError(t, ends[0].SetDeadline(time.Now().Add(30*time.Second)))
	}
	for _, ends := range [][2]net.Conn{{pod, client}, {client, pod}} {
		_, err = io.WriteString(ends[0], "hello")
		require.NoError(t, err)
		require.NoError(t, ends[0].(*net.TCPConn).CloseWrite())
		b, err := io.ReadAll(ends[1])
		require.NoError(t, err)
		assert.Equal(t, "hello", string(b))
	}
}
