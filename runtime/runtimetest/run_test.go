package runtimetest

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// simulatedConn connects to a simulated runtime behind a proxy with rules.
func simulatedConn(t *testing.T, rules ...Rule) *grpc.ClientConn {
	t.Helper()
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	direct := must(rt.Dial())
	t.Cleanup(func() { _ = direct.Close() })
	p, err := NewProxy(direct, 1, rules...)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	cc := must(p.Dial())
	t.Cleanup(func() { _ = cc.Close() })
	return cc.ClientConn
}

// only selects the cases whose names have one of the words.
func only(words ...string) Option {
	return Only(func(name string) bool {
		for _, w := range words {
			if strings.Contains(name, w) {
				return true
			}
		}
		return false
	})
}

const (
	versionCase   = "the runtime reports its name and versions"
	readinessCase = "the runtime reports that it is ready"
)

// wrongVersion makes the runtime report a version that no kubelet accepts.
func wrongVersion() Rule {
	return Rule{Fault: Corrupt, RPC: "Version", Mutate: func(_ string, resp proto.Message) { resp.(*v1.VersionResponse).Version = "0.2.0" }}
}

// A runtime is not judged by the speed of the machine: bounds grow with what a pod takes.
func TestRun_AllowsForABusyMachine(t *testing.T) {
	const crash = "a crash is reported at once"
	late := func(podTime time.Duration) Result {
		var result Result
		synctest.Test(t, func(t *testing.T) {
			conn := simulatedConn(t, Rule{Fault: Delay, RPC: "RunPodSandbox", Delay: podTime}, Rule{Fault: Delay, RPC: "ContainerStatus", Delay: 3 * time.Second})
			r, err := Run(t.Context(), conn, only(crash))
			require.NoError(t, err)
			require.Len(t, r.Cases, 1)
			result = r.Cases[0].Result
		})
		return result
	}
	assert.Equal(t, Failed, late(0))
	assert.Equal(t, Passed, late(2*time.Second))
}

// A stream of events that a busy runtime opens late loses no event of a case.
func TestRun_WaitsForTheStreamsOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), simulatedConn(t, Rule{Fault: Delay, RPC: "GetContainerEvents", Delay: 3 * time.Second}), only("readers receive the same events"))
		require.NoError(t, err)
		require.Len(t, r.Cases, 1)
		assert.Equal(t, Passed, r.Cases[0].Result, r.Cases[0].String())
	})
}

// Metrics that are gathered live have no time.
func TestRun_TakesLiveMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := Rule{Fault: Corrupt, RPC: "ListPodSandboxMetrics", Mutate: onResponse(func(r *v1.ListPodSandboxMetricsResponse) {
			for _, pod := range r.GetPodMetrics() {
				for _, c := range pod.GetContainerMetrics() {
					for _, m := range c.GetMetrics() {
						m.Timestamp = 0
					}
				}
			}
		})}
		r, err := Run(t.Context(), simulatedConn(t, live), only("metrics of pods are described"))
		require.NoError(t, err)
		require.Len(t, r.Cases, 1)
		assert.Equal(t, Passed, r.Cases[0].Result, r.Cases[0].String())
	})
}

// A case that fails in the middle leaves no pod behind, although it still makes some.
func TestRun_RemovesThePodsOfAFailedCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuite()
		s.logs = t.TempDir()
		s.cc = simulatedConn(t, Rule{Fault: Delay, RPC: "RemovePodSandbox", Delay: time.Second})
		c := s.execute(t.Context(), testCase{name: "a case", run: func(c *CaseT) {
			go func() {
				for i := 0; ; i++ {
					c.pod("p" + strconv.Itoa(i))
					c.wait(100 * time.Millisecond)
				}
			}()
			c.wait(time.Second)
			c.fatal("no such luck")
		}})
		failures, _ := c.outcome()
		assert.Contains(t, failures, "no such luck")
		left, err := v1.NewRuntimeServiceClient(s.cc).ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
		require.NoError(t, err)
		assert.Empty(t, left.GetItems())
	})
}

// The version of the API is one of semantic versioning, of which v1 is the short form.
func TestRun_TakesVersionsOfTheAPI(t *testing.T) {
	for version, want := range map[string]Result{"v1": Passed, "1.0.0": Passed, "v1.36.0": Passed, "v1alpha2": Failed, "2.0.0": Failed, "": Failed} {
		synctest.Test(t, func(t *testing.T) {
			report := Rule{Fault: Corrupt, RPC: "Version", Mutate: onResponse(func(r *v1.VersionResponse) { r.RuntimeApiVersion = version })}
			r, err := Run(t.Context(), simulatedConn(t, report), only(versionCase))
			require.NoError(t, err)
			require.Len(t, r.Cases, 1)
			assert.Equal(t, want, r.Cases[0].Result, version)
		})
	}
}

func TestRun_ReportsLongCases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "the runtime reports its cgroup driver"
		var names []string
		var elapsed []time.Duration
		_, err := Run(t.Context(), simulatedConn(t, Rule{Fault: Hang, RPC: "RuntimeConfig"}), only(name, readinessCase), OnRunning(func(caseName string, since time.Duration) {
			names, elapsed = append(names, caseName), append(elapsed, since)
		}))
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(elapsed), 3)
		assert.Equal(t, []string{name, name, name}, names[:3])
		assert.Equal(t, []time.Duration{30 * time.Second, time.Minute, 90 * time.Second}, elapsed[:3])
	})
}

func TestRun_ReportsEachResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress []string
		var reported Report
		r, err := Run(t.Context(), simulatedConn(t, wrongVersion()), WithoutProcesses(), only(versionCase, readinessCase, "OOM", "memory limit"),
			OnCase(func(c CaseResult) { progress = append(progress, c.Name) }), OnReport(func(r Report) { reported = r }), MaxParallel(1))
		require.NoError(t, err)
		assert.Equal(t, r, reported)
		assert.Len(t, progress, len(r.Cases))
		assert.Equal(t, "sublet-embedded", r.Runtime)
		assert.NotEmpty(t, r.Version)
		results := map[string]CaseResult{}
		for _, c := range r.Cases {
			results[c.Name] = c
			assert.NotEmpty(t, c.Area)
		}
		assert.Equal(t, Passed, results[readinessCase].Result)
		failed := results[versionCase]
		assert.Equal(t, Failed, failed.Result)
		assert.Contains(t, failed.String(), "is 0.2.0, want 0.1.0")
		assert.Contains(t, failed.String(), "Consequence for a kubelet: it would not start at all")
		assert.Positive(t, r.Count(Skipped))
	})
}

func TestRun_ReportsCasesInTheirOrderWithTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []string
		r, err := Run(t.Context(), simulatedConn(t, Rule{Fault: Delay, RPC: "Version", Delay: time.Second}), only(versionCase, readinessCase),
			OnCase(func(c CaseResult) { ended = append(ended, c.Name) }))
		require.NoError(t, err)
		require.Len(t, r.Cases, 2)
		assert.Equal(t, []string{readinessCase, versionCase}, ended)
		assert.Equal(t, []string{versionCase, readinessCase}, []string{r.Cases[0].Name, r.Cases[1].Name})
		assert.InDelta(t, 1, r.Cases[0].Seconds, 0.01)
		assert.InDelta(t, 2, r.Seconds, 0.01, "the version is asked for at first, too")
	})
}

func TestRun_SkipsWhatIsNotImplemented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), simulatedConn(t, Rule{Fault: Fail, RPC: "RuntimeConfig", Code: codes.Unimplemented}), only("reports its cgroup driver"))
		require.NoError(t, err)
		require.Len(t, r.Cases, 1)
		assert.Equal(t, Skipped, r.Cases[0].Result)
		assert.Equal(t, r.Cases[0].Reason, r.Cases[0].String())
		assert.Contains(t, r.Cases[0].Reason, "not implemented")
	})
}

// The CRI does not promise that a container sees its cgroup.
func TestRun_SkipsWhatContainersDoNotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none := Rule{Fault: Corrupt, RPC: "ExecSync", Mutate: onResponse(func(r *v1.ExecSyncResponse) { r.Stdout = []byte("none\n") })}
		r, err := Run(t.Context(), simulatedConn(t, none), only("a change of limits reaches the cgroup"))
		require.NoError(t, err)
		require.Len(t, r.Cases, 1)
		assert.Equal(t, Skipped, r.Cases[0].Result, r.Cases[0].String())
		assert.Equal(t, "containers do not see their cgroup", r.Cases[0].Reason)
	})
}

// The embedded runtime has none of the failures of the runtime whose name it takes.
func TestRun_KnowsTheFailuresOfReleasedRuntimes(t *testing.T) {
	const name = "a list can be asked for one image"
	rename := Rule{Fault: Corrupt, RPC: "Version", Mutate: func(_ string, resp proto.Message) { resp.(*v1.VersionResponse).RuntimeName = "containerd" }}
	for _, isKnown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			opts := []Option{only(name)}
			if isKnown {
				opts = append(opts, KnownRuntimes())
			}
			r, err := Run(t.Context(), simulatedConn(t, rename), opts...)
			require.NoError(t, err)
			require.Len(t, r.Cases, 1)
			assert.Equal(t, isKnown, r.Cases[0].Result == Failed, r.Cases[0].String())
		})
	}
}

func TestRun_HasALogDirectoryOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var logs atomic.Value
	edit := EditPod(func(pod *v1.PodSandboxConfig) { logs.Store(pod.GetLogDirectory()) })
	_, err := Run(t.Context(), simulatedConn(t), only("a pod keeps its labels"), edit)
	require.NoError(t, err)
	path, _ := logs.Load().(string)
	assert.True(t, strings.HasPrefix(path, dir+"/"), path)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)

	t.Setenv("TMPDIR", "/no/such/directory")
	r, err := Run(t.Context(), simulatedConn(t), only(versionCase))
	assert.ErrorContains(t, err, "run the suite: ")
	assert.Equal(t, Report{}, r)
	_, err = Run(t.Context(), simulatedConn(t), only(versionCase), LogRoot(dir))
	assert.NoError(t, err)
}

func TestRun_JudgesKnownFailures(t *testing.T) {
	tests := map[string]struct {
		rules   []Rule
		options []Option
		want    Result
		text    string
	}{
		"a known failure that fails is a deviation": {[]Rule{wrongVersion()}, []Option{KnownFailures(map[string]string{versionCase: "it is new"})}, Deviation, "known failure: it is new\nversion"},
		"a known failure that passes is a failure":  {nil, []Option{KnownFailures(map[string]string{versionCase: "it is new"})}, Failed, "remove it from the list"},
		"a known flake that fails is a deviation":   {[]Rule{wrongVersion()}, []Option{KnownFlakes(map[string]string{versionCase: "at times"})}, Deviation, "known failure: at times"},
		"a known flake that passes has passed":      {nil, []Option{KnownFlakes(map[string]string{versionCase: "at times"})}, Passed, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := Run(t.Context(), simulatedConn(t, tc.rules...), append(tc.options, only(versionCase))...)
				require.NoError(t, err)
				require.Len(t, r.Cases, 1)
				assert.Equal(t, tc.want, r.Cases[0].Result)
				assert.Contains(t, r.Cases[0].String(), tc.text)
			})
		})
	}
}

func TestRun_SaysWhyItCannotRun(t *testing.T) {
	tests := map[string]struct {
		rule    Rule
		options []Option
		want    string
	}{
		"the runtime does not respond":      {Rule{Fault: Fail, RPC: "Version"}, nil, "run the suite: get the version of the runtime"},
		"the image cannot be pulled":        {Rule{Fault: Fail, RPC: "PullImage"}, []Option{Image("example.com/app:1")}, "run the suite: get image example.com/app:1"},
		"the second image cannot be pulled": {Rule{Fault: Fail, RPC: "PullImage", Skip: 1}, []Option{SecondImage("example.com/b:1")}, "get image example.com/b:1"},
		"a known failure does not exist":    {Rule{Fault: Fail, RPC: "None"}, []Option{KnownFailures(map[string]string{"no such": "x"})}, `case "no such" not found`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := Run(t.Context(), simulatedConn(t, tc.rule), append(tc.options, only(versionCase))...)
				assert.ErrorContains(t, err, tc.want)
				assert.Equal(t, Report{}, r)
			})
		})
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var n atomic.Int32
		r, err := Run(ctx, simulatedConn(t), MaxParallel(1), WithoutProcesses(), OnCase(func(CaseResult) {
			if n.Add(1) == 2 {
				cancel()
			}
		}))
		require.ErrorIs(t, err, context.Canceled)
		assert.LessOrEqual(t, len(r.Cases), 4, "no case begins after the end")
	})
}

func TestRun_RestartsTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isRestart := map[string]bool{}
		for _, tc := range restartCases() {
			isRestart[tc.name] = true
		}
		r, err := Run(t.Context(), simulatedConn(t), Only(func(name string) bool { return isRestart[name] }),
			Restart(func(context.Context) error { return errors.New("no such unit") }))
		require.NoError(t, err)
		require.NotEmpty(t, r.Cases)
		for _, c := range r.Cases {
			assert.Equal(t, "restarts", c.Area)
			assert.Contains(t, c.String(), "restart the runtime: no such unit")
		}
	})
}

// The pods of a run are bounded in number.
func TestRun_RunsSoManyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := Rule{Fault: Delay, RPC: "*", Delay: time.Second}
		start := time.Now()
		_, err := Run(t.Context(), simulatedConn(t, slow), MaxParallel(1), only(versionCase, readinessCase))
		require.NoError(t, err)
		single := time.Since(start)
		start = time.Now()
		_, err = Run(t.Context(), simulatedConn(t, slow), MaxParallel(2), only(versionCase, readinessCase))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), single)
	})
}
