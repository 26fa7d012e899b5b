package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// AG-8: what cannot be added to is not overwritten either.
func TestNew_RefusesOptionsGivenTwice(t *testing.T) {
	for want, pair := range map[string][2]agent.Option{
		"WithNode: set twice":                           {agent.WithNode(node.Config{MaxPods: 3}), agent.WithNode(node.Config{IPs: []string{"10.0.0.1"}})},
		"WithLogger: set twice":                         {agent.WithLogger(slog.New(slog.DiscardHandler)), agent.WithLogger(slog.New(slog.DiscardHandler))},
		"WithRecorder: set twice":                       {agent.WithRecorder(noting(func(*corev1.Event) {})), agent.WithRecorder(noting(func(*corev1.Event) {}))},
		"WithConfig(podsync.Config): set twice":         {agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{}}), agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{}})},
		"WithConfig(podworkers.DrainConfig): set twice": {agent.WithConfig(podworkers.DrainConfig{}), agent.WithConfig(podworkers.DrainConfig{})},
		"WithConfig(podworkers.Config): set twice":      {agent.WithConfig(podworkers.Config{ResyncPeriod: time.Hour}), agent.WithConfig(podworkers.Config{Jitter: 0.1})},
		"WithConfig(eviction.Config): set twice":        {agent.WithConfig(eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}), agent.WithConfig(eviction.Config{})},
		"WithConfig(imagegc.Config): set twice":         {agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 90, LowThresholdPercent: 80}}), agent.WithConfig(imagegc.Config{})},
		"WithConfig(containergc.Config): set twice":     {agent.WithConfig(containergc.Config{}), agent.WithConfig(containergc.Config{Policy: containergc.Policy{MaxPerPodContainer: 2}})},
		"WithConfig(logrotate.Config): set twice":       {agent.WithConfig(logrotate.Config{}), agent.WithConfig(logrotate.Config{MaxFiles: 2})},
		"WithConfig(cri.Config): set twice":             {agent.WithConfig(cri.Config{Pulls: cri.PullLimits{MaxParallel: 1}}), agent.WithConfig(cri.Config{Pulls: cri.PullLimits{MaxParallel: 2}})},
		`WithRuntimeEndpoint: set to "unix:///i" and to "unix:///j"`: {
			agent.WithRuntimeEndpoint("unix:///r", "unix:///i"), agent.WithRuntimeEndpoint("unix:///r", "unix:///j"),
		},
	} {
		_, err := agent.New(agent.WithNodeName("node"), pair[0], pair[1])
		assert.ErrorContains(t, err, want)
	}
}

func TestNew_RefusesEndpointsThatCannotBeDialed(t *testing.T) {
	for endpoint, want := range map[string]string{
		"unix://run/x.sock":               "must have an absolute path",
		"/run/containerd/containerd.sock": "must be unix:///path",
		"tcp://127.0.0.1:1":               "only unix:// is supported",
	} {
		root := agent.WithRootDir(t.TempDir())
		_, err := agent.New(root, agent.WithRuntimeEndpoint(endpoint))
		require.ErrorContains(t, err, want)
		_, err = agent.New(root, agent.WithRuntimeEndpoint("unix:///x.sock", endpoint))
		require.ErrorContains(t, err, want, "for images")
	}
}

// eachFunc calls visit with every function field of the hooks.
func eachFunc(path string, v reflect.Value, visit func(path string, f reflect.Value)) {
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			eachFunc(path+"."+v.Type().Field(i).Name, v.Field(i), visit)
		}
		return
	}
	visit(path, v)
}

// An endpoint is enough: the settings of the node are detected when the agent connects.
func TestWithRuntimeEndpoint_NeedsNoCRINode(t *testing.T) {
	for name, opts := range map[string][]agent.Option{
		"detected": nil, "set": {agent.WithConfig(cri.Config{Node: cri.Node{SeccompDefault: true}})},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := agent.New(append(opts, agent.WithRuntimeEndpoint("unix:///run/nothing.sock"), agent.WithRootDir(filepath.Join(t.TempDir(), "root")),
				agent.WithNode(node.Config{DisableCgroups: true}))...)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.NoError(t, a.Run(ctx))
		})
	}
}

// AG-8: every hook of every component can be set by several observers: it returns nothing,
// or a context derived from the one that it gets, which the next observer gets.
func TestHooks_HaveNoResultButContext(t *testing.T) {
	n := 0
	eachFunc("Hooks", reflect.ValueOf(agent.Hooks{}), func(path string, f reflect.Value) {
		n++
		require.Equal(t, reflect.Func, f.Kind(), path)
		switch f.Type().NumOut() {
		case 0:
		case 1:
			ctx := reflect.TypeFor[context.Context]()
			assert.Equal(t, ctx, f.Type().In(0), path)
			assert.Equal(t, ctx, f.Type().Out(0), path)
		default:
			assert.Fail(t, "results", path)
		}
	})
	require.Greater(t, n, 25)
}

// AG-8: hooks add up, and are called in the order of their options.
func TestWithHooks_CallsAllInOrder(t *testing.T) {
	var calls []string
	note := func(who string) agent.Option {
		var h agent.Hooks
		h.Sources.SetReceived = func(string, int, int, time.Duration) { calls = append(calls, who) }
		return agent.WithHooks(h)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a, err := agent.New(
			agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(), agent.WithSource("memory", lateSource(closed())),
			note("one"), agent.WithHooks(agent.Hooks{}), note("two"), note("three"),
		)
		require.NoError(t, err)
		require.NoError(t, a.Run(ctx))
	})
	require.Equal(t, []string{"one", "two", "three"}, calls)
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// down is a runtime that answers nothing.
type down struct{ agent.Runtime }

var errDown = errors.New("nobody is there")

func (down) Pods(context.Context) ([]runtime.Pod, error)    { return nil, errDown }
func (down) Status(context.Context) (runtime.Status, error) { return runtime.Status{}, errDown }
func (down) Watch(context.Context, func(types.UID)) error   { return errDown }

// A runtime that is down is reported once, by errors that callers can match.
func TestHealthy_SaysOnceThatTheRuntimeIsDown(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := agent.New(agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRuntime(down{}), agent.WithRootDir(dir))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(time.Minute)
		err = a.Healthy()
		cancel()
		require.NoError(t, <-done)
		require.ErrorIs(t, err, agent.ErrRuntimeNotReady)
		require.ErrorIs(t, err, errDown)
		require.Equal(t, 1, strings.Count(err.Error(), "get runtime status"), err)
	})
}
