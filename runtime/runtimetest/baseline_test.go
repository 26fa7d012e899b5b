package runtimetest

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func TestMeasureBaseline_MeasuresRawCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{Script: simulated.Script{
			SandboxDelay: 80 * time.Millisecond, StartDelay: 50 * time.Millisecond, StopAfter: 30 * time.Millisecond,
		}})})
		require.NoError(t, err)
		defer func() { require.NoError(t, rt.Close()) }()
		cc := must(rt.Dial())
		defer func() { _ = cc.Close() }()
		var edited atomic.Int32
		r, err := MeasureBaseline(t.Context(), cc, BaselineConfig{Pods: 8, MaxParallel: 4, EditPod: func(*v1.PodSandboxConfig) { edited.Add(1) }})
		require.NoError(t, err)
		assert.EqualValues(t, 8, edited.Load())
		assert.Equal(t, 80*time.Millisecond, r.Calls["RunPodSandbox"])
		assert.Equal(t, 50*time.Millisecond, r.Calls["StartContainer"])
		assert.Equal(t, 30*time.Millisecond, r.Calls["StopContainer"])
		assert.Equal(t, 130*time.Millisecond, r.StartDuration)
		assert.Equal(t, 30*time.Millisecond, r.StopDuration)
		assert.Equal(t, 260*time.Millisecond, r.TotalDuration, "eight pods, four at a time")
		assert.True(t, strings.Contains(r.String(), "130.00 ms"), r.String())
		assert.Equal(t, 0, sandboxes(t, v1.NewRuntimeServiceClient(cc)), "pods are left")
	})
}

func TestMeasureBaseline_ReportsFailuresAndRemovesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, p := behind(t, 1, Rule{Fault: Fail, RPC: "StartContainer", Skip: 2})
		cc := must(p.Dial())
		defer func() { _ = cc.Close() }()
		_, err := MeasureBaseline(t.Context(), cc, BaselineConfig{Pods: 4, Image: "i"})
		assert.ErrorContains(t, err, "StartContainer")
		assert.Equal(t, 0, sandboxes(t, rs))
	})
}
