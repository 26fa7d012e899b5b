package runtimetest

import (
	"context"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// TestMain runs more tests in parallel than there are processors, unless -parallel says
// otherwise: most of them wait for processes.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", "16") // most of the time cases wait
	}
	leaktest.Main(m)
}

// behind returns clients of a simulated runtime behind a proxy, and the proxy.
func behind(t testing.TB, seed uint64, rules ...Rule) (v1.RuntimeServiceClient, *Proxy) {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Images: []embedded.Image{{Ref: "i", Preloaded: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	direct, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	p, err := NewProxy(direct, seed, rules...)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	cc, err := p.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return v1.NewRuntimeServiceClient(cc), p
}

func runPod(ctx context.Context, rs v1.RuntimeServiceClient, name string) (string, error) {
	r, err := rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name + "-uid"},
	}})
	return r.GetPodSandboxId(), err
}

func startIn(t testing.TB, rs v1.RuntimeServiceClient, sandbox string) string {
	r, err := rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sandbox, Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "i"},
	}})
	require.NoError(t, err)
	_, err = rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: r.GetContainerId()})
	require.NoError(t, err)
	return r.GetContainerId()
}

func sandboxes(t testing.TB, rs v1.RuntimeServiceClient) int {
	r, err := rs.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	return len(r.GetItems())
}

func TestProxy_ForwardsCallsThatNoRuleMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, p := behind(t, 1)
		id := startIn(t, rs, must(runPod(t.Context(), rs, "p")))
		st, err := rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, st.GetStatus().GetState())
		_, err = rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: "none"})
		assert.Equal(t, codes.NotFound, status.Code(err), "codes come through")
		assert.Equal(t, map[string]int{"RunPodSandbox": 1, "CreateContainer": 1, "StartContainer": 1, "ContainerStatus": 2}, p.CallCounts())
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestProxy_InjectsFaultsIntoCalls(t *testing.T) {
	tests := map[string]struct {
		rule  Rule
		code  codes.Code
		takes time.Duration
		done  bool // the work was done
	}{
		"delay":              {Rule{Fault: Delay, Delay: 3 * time.Second}, codes.OK, 3 * time.Second, true},
		"hang":               {Rule{Fault: Hang}, codes.DeadlineExceeded, 10 * time.Second, false},
		"fail":               {Rule{Fault: Fail, Code: codes.ResourceExhausted}, codes.ResourceExhausted, 0, false},
		"drop in silence":    {Rule{Fault: Drop}, codes.DeadlineExceeded, 10 * time.Second, true},
		"drop with an error": {Rule{Fault: Drop, Code: codes.Unavailable}, codes.Unavailable, 0, true},
		"another call":       {Rule{Fault: Fail, RPC: "Stop*"}, codes.OK, 0, true},
		"another pod":        {Rule{Fault: Fail, Pod: "other"}, codes.OK, 0, true},
		"this pod":           {Rule{Fault: Fail, Pod: "default/p", RPC: "Run*"}, codes.Unavailable, 0, false},
		"not yet":            {Rule{Fault: Fail, From: time.Hour}, codes.OK, 0, true},
		"not any more":       {Rule{Fault: Fail, Skip: 1}, codes.OK, 0, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rs, p := behind(t, 1, tc.rule)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				begin := time.Now()
				_, err := runPod(ctx, rs, "p")
				assert.Equal(t, tc.code, status.Code(err), "%v", err)
				assert.Equal(t, tc.takes, time.Since(begin))
				require.NoError(t, p.SetRules())
				assert.Equal(t, tc.done, sandboxes(t, rs) == 1)
			})
		})
	}
}

func TestProxy_MatchesIDsToPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, p := behind(t, 1)
		a := startIn(t, rs, must(runPod(t.Context(), rs, "a")))
		b := startIn(t, rs, must(runPod(t.Context(), rs, "b")))
		require.NoError(t, p.SetRules(Rule{Fault: Fail, Pod: "b-uid"}))
		_, err := rs.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: a})
		require.NoError(t, err)
		_, err = rs.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: b})
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, []int{1}, p.FaultCounts())
	})
}

// eventsOf reads n events of containers: type and the container's place in ids.
func eventsOf(t testing.TB, s grpc.ServerStreamingClient[v1.ContainerEventResponse], n int) []string {
	var got []string
	for range n {
		e, err := s.Recv()
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%s %d", e.GetPodSandboxStatus().GetMetadata().GetName(), e.GetContainerEventType()))
	}
	return got
}

func TestProxy_InjectsFaultsIntoStreams(t *testing.T) {
	for name, tc := range map[string]struct {
		rule Rule
		want []string
	}{
		"duplicate": {Rule{Fault: Duplicate}, []string{"p 0", "p 0", "p 1", "p 1"}},
		"reorder":   {Rule{Fault: Reorder}, []string{"p 1", "p 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rs, _ := behind(t, 1, tc.rule)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := must(rs.GetContainerEvents(ctx, &v1.GetEventsRequest{}))
				_, err := s.Header()
				require.NoError(t, err)
				must(runPod(ctx, rs, "p"))
				assert.Equal(t, tc.want, eventsOf(t, s, len(tc.want)))
			})
		})
	}
	t.Run("a lone event is held for a moment only", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rs, p := behind(t, 1)
			id := must(runPod(t.Context(), rs, "p"))
			require.NoError(t, p.SetRules(Rule{Fault: Reorder}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := must(rs.GetContainerEvents(ctx, &v1.GetEventsRequest{}))
			_, err := s.Header()
			require.NoError(t, err)
			begin := time.Now()
			must(rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: id}))
			assert.Equal(t, []string{"p 2"}, eventsOf(t, s, 1))
			assert.Equal(t, reorderTimeout, time.Since(begin))
		})
	})
	t.Run("cut", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rs, _ := behind(t, 1, Rule{Fault: BreakStream, RPC: "GetContainerEvents", After: 1, Count: 1})
			s := must(rs.GetContainerEvents(t.Context(), &v1.GetEventsRequest{}))
			_, err := s.Header()
			require.NoError(t, err)
			must(runPod(t.Context(), rs, "p"))
			eventsOf(t, s, 1)
			_, err = s.Recv()
			assert.Equal(t, codes.Unavailable, status.Code(err))
		})
	})
}

func TestProxy_CorruptsResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, p := behind(t, 1)
		id := startIn(t, rs, must(runPod(t.Context(), rs, "p")))
		require.NoError(t, p.SetRules(Rule{Fault: Corrupt}))
		st := must(rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id}))
		assert.NotEqual(t, v1.ContainerState_CONTAINER_RUNNING, st.GetStatus().GetState())
		assert.Zero(t, sandboxes(t, rs))
		require.NoError(t, p.SetRules(Rule{Fault: Corrupt, Mutate: func(rpc string, m proto.Message) {
			if r, ok := m.(*v1.ContainerStatusResponse); ok {
				r.Status.ExitCode = 99
			}
		}}))
		st = must(rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id}))
		assert.Equal(t, int32(99), st.GetStatus().GetExitCode())
		require.NoError(t, p.SetRules())
		st = must(rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id}))
		assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, st.GetStatus().GetState(), "the runtime itself was never changed")
	})
}

func TestProxy_IsRepeatable(t *testing.T) {
	play := func(t *testing.T, seed uint64) (out []codes.Code) {
		synctest.Test(t, func(t *testing.T) {
			rs, _ := behind(t, seed, Rule{Fault: Fail, Probability: 0.5})
			for i := range 40 {
				_, err := runPod(t.Context(), rs, fmt.Sprint(i))
				out = append(out, status.Code(err))
			}
		})
		return out
	}
	one := play(t, 7)
	assert.Equal(t, one, play(t, 7))
	assert.NotEqual(t, one, play(t, 8))
	assert.Contains(t, one, codes.OK)
	assert.Contains(t, one, codes.Unavailable)
}

func TestProxy_ServesASocket(t *testing.T) {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	direct := must(rt.Dial())
	defer func() { _ = direct.Close() }()
	p := must(NewProxy(direct, 1))
	path := filepath.Join(t.TempDir(), "s")
	lis := must(net.Listen("unix", path))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, lis) }()
	cc := must(grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer func() { _ = cc.Close() }()
	v, err := v1.NewRuntimeServiceClient(cc).Version(ctx, &v1.VersionRequest{})
	require.NoError(t, err)
	assert.Equal(t, "sublet-embedded", v.GetRuntimeName())
	cancel()
	assert.NoError(t, <-served)
	for range 1000 { // the context may end before it has begun
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		require.NoError(t, p.Serve(ctx, must(net.Listen("unix", path))))
	}
}

func TestParseRule(t *testing.T) {
	r, err := ParseRule("fault=drop,rpc=Start*,pod=web,skip=1,count=2,probability=0.25,from=1s,until=1m0s,code=Unavailable")
	require.NoError(t, err)
	assert.Equal(t, Rule{
		RPC: "Start*", Pod: "web", Skip: 1, Count: 2, Probability: 0.25, From: time.Second, Until: time.Minute,
		Fault: Drop, Code: codes.Unavailable,
	}, r)
	for _, bad := range []string{"", "rpc=x", "fault=none", "fault=fail,code=Nope", "fault=delay,delay=-1s", "fault=hang,probability=2", "fault=hang,rpc=[", "fault=hang,hm=1", "fault=hang,rpc=Versions", "fault=delay"} {
		_, err := ParseRule(bad)
		assert.Error(t, err, bad)
	}
}

func FuzzParseRule(f *testing.F) {
	f.Add("fault=delay,rpc=StartContainer,delay=2s,count=3")
	f.Add("fault=break-stream,after=1,code=Internal,probability=0.5")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		parsed, err := ParseRule(r.String())
		require.NoError(t, err)
		assert.Equal(t, r.String(), parsed.String())
	})
}
