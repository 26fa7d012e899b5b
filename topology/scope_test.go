package topology_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// podProvider offers other hints for pods than for containers.
type podProvider struct {
	provider

	ofPod [][]topology.Hint
}

func (p *podProvider) PodHints(*corev1.Pod) [][]topology.Hint { return p.ofPod }

func TestParseScope(t *testing.T) {
	for _, name := range []string{"container", "pod"} {
		s, err := topology.ParseScope(name)
		require.NoError(t, err)
		require.EqualValues(t, name, s)
	}
	for _, name := range []string{"", "Pod", "node"} {
		_, err := topology.ParseScope(name)
		require.ErrorContains(t, err, "must be container or pod")
	}
}

// With the scope of pods, one affinity is that of all containers, and is found before any of them gets something.
func TestManager_PodScope(t *testing.T) {
	p := &podProvider{
		provider: provider{reserved: map[types.UID][]string{}, hints: [][]topology.Hint{{hint(true, 0)}}},
		ofPod:    [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}},
	}
	m, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Scope: topology.PodScope, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{p}})
	require.NoError(t, err)
	pod := testPod("a")
	pod.Name = "web"
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	require.True(t, m.Admit(pod, nil).Admitted)
	require.Equal(t, map[types.UID][]string{"a": {"init on 1", "first on 1", "second on 1"}}, p.reserved)

	p.ofPod = [][]topology.Hint{{hint(true, 0, 1)}}
	require.Equal(t, podspec.Rejected("TopologyAffinityError", "Resources cannot be allocated with Topology locality: policy single-numa-node, pod web"), m.Admit(pod, nil))
	require.Empty(t, p.reserved, "what it had from before is free")

	_, err = topology.New(topology.Config{Scope: topology.PodScope, Nodes: topology.NewSet(0), Providers: []topology.Provider{&provider{}}})
	require.ErrorContains(t, err, "*topology_test.provider gives no hints for pods")
	_, err = topology.New(topology.Config{Scope: "all", Nodes: topology.NewSet(0), Providers: []topology.Provider{p}})
	require.ErrorContains(t, err, `Config.Scope: invalid scope "all"`)
}

func TestMostTogether(t *testing.T) {
	needs := map[string]int64{"a": 1, "b": 2, "c": 4, "d": 8, "e": 16}
	always := corev1.ContainerRestartPolicyAlways
	list := func(names string, policy *corev1.ContainerRestartPolicy) (out []corev1.Container) {
		for _, name := range names {
			out = append(out, corev1.Container{Name: string(name), RestartPolicy: policy})
		}
		return out
	}
	for _, tt := range []struct {
		before, sidecars, after, regular string
		want                             int64
	}{
		{regular: "ab", want: 3},
		{before: "c", regular: "ab", want: 4},
		{before: "cd", regular: "a", want: 8},
		{sidecars: "b", regular: "a", want: 3},
		{sidecars: "b", after: "c", regular: "a", want: 6},
		{before: "c", sidecars: "a", after: "b", regular: "d", want: 9},
		{before: "e", sidecars: "ab", after: "c", regular: "d", want: 16},
		{},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: list(tt.regular, nil)}}
		pod.Spec.InitContainers = append(append(list(tt.before, nil), list(tt.sidecars, &always)...), list(tt.after, nil)...)
		require.Equal(t, tt.want, topology.MostTogether(pod, func(c *corev1.Container) int64 { return needs[c.Name] }), "%+v", tt)
	}
}
