package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// The scripts of simulated pods answer their probes without a network connection, which
// a bubble would not allow. That holds for a runtime made by the agent and for one that
// the user made.
func TestAgent_ProbesSimulatedPods(t *testing.T) {
	port := intstr.FromInt32(80)
	probes := map[string]corev1.ProbeHandler{
		"tcp":   {TCPSocket: &corev1.TCPSocketAction{Port: port}},
		"http":  {HTTPGet: &corev1.HTTPGetAction{Port: port}},
		"https": {HTTPGet: &corev1.HTTPGetAction{Port: port, Scheme: corev1.URISchemeHTTPS}},
		"grpc":  {GRPC: &corev1.GRPCAction{Port: 80}},
	}
	scripts := map[string]struct {
		annotations map[string]string
		ready       bool
	}{
		"well":   {nil, true},
		"unwell": {map[string]string{simulated.ScriptPrefix + "http-status": "500", simulated.ScriptPrefix + "grpc-status": "NOT_SERVING", simulated.ScriptPrefix + "listen-after": "1h"}, false},
	}
	for kind, handler := range probes {
		for how, script := range scripts {
			for _, givenRuntime := range []bool{false, true} {
				name := kind + " " + how
				if givenRuntime {
					name += " in a runtime of the user"
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						pod := &corev1.Pod{
							ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Annotations: script.annotations},
							Spec: corev1.PodSpec{Containers: []corev1.Container{{
								Name: "main", Image: "app:1", ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: handler},
							}}},
						}
						assert.Equal(t, script.ready, readyWithin(t, 20*time.Second, givenRuntime, pod))
					})
				})
			}
		}
	}
}

// readyWithin runs an agent for the duration and reports whether the pod is ready at
// its end.
func readyWithin(t *testing.T, d time.Duration, givenRuntime bool, pod *corev1.Pod) bool {
	t.Helper()
	options := []agent.Option{
		agent.WithNodeName("n"), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}),
		agent.WithSource("memory", podsource.NewMemory(pod)),
	}
	if !givenRuntime {
		options = append(options, agent.WithSimulatedRuntime())
	} else {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, rt.Close()) }()
		cc, err := rt.Dial()
		require.NoError(t, err)
		defer func() { require.NoError(t, cc.Close()) }()
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)
		options = append(options, agent.WithRuntime(client))
	}
	a, err := agent.New(options...)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	require.NoError(t, a.Run(ctx))
	return a.Pods()[0].Status.ContainerStatuses[0].Ready
}
