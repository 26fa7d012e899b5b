package node_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/node"
)

func resources(list ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, entry := range list {
		name, value, _ := strings.Cut(entry, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

// AG-8
func TestConfig_CheckRejectsContradictions(t *testing.T) {
	for want, c := range map[string]node.Config{
		"node: PodPidsLimit -1 is negative; 0 sets no bound":                              {PodPidsLimit: -1},
		"node: MaxImages -3 is negative, and neither AllImages nor NoImages":              {MaxImages: -3},
		"node: MaxPods -1 is negative":                                                    {MaxPods: -1},
		"node: PodPidsLimit and PodsCgroupLimits need cgroups; remove DisableCgroups":     {PodPidsLimit: 1, DisableCgroups: true},
		"node: PodPidsLimit 11 is more than PodsCgroupLimits[pid] of 10":                  {PodPidsLimit: 11, PodsCgroupLimits: resources("pid=10")},
		"node: PodsCgroupLimits has no limit for pods; cpu, memory and pid are supported": {PodsCgroupLimits: resources("pods=1")},
		"node: PodsCgroupLimits[pid] must be positive, got 0":                             {PodPidsLimit: 1, PodsCgroupLimits: resources("pid=0")},
		"node: PodsCgroupLimits[cpu] must be positive, got -1":                            {PodsCgroupLimits: resources("cpu=-1")},
		"node: PodsCgroupLimits[memory] of 1Gi is less than Allocatable of 2Gi":           {Allocatable: resources("memory=2Gi"), PodsCgroupLimits: resources("memory=1Gi")},
		`node: "logs" is not an absolute path`:                                            {PodLogsDir: "logs"},
		`node: "links" is not an absolute path`:                                           {LogLinksDir: "links"},
		`node: "slice" is not an absolute path`:                                           {NodeCgroup: "slice"},
		`node: "pods" is not an absolute path`:                                            {CgroupRoot: "pods"},
		`node: IPs: invalid IP address "nowhere"`:                                         {IPs: []string{"nowhere"}},
		"node: LogLinksDir must not be PodLogsDir":                                        {LogLinksDir: "/logs/", PodLogsDir: "/logs"},
	} {
		require.EqualError(t, c.Check(), want)
	}
}

func TestConfig_CheckAccepts(t *testing.T) {
	for name, c := range map[string]node.Config{
		"nothing":                             {},
		"limits equal to allocatable":         {Allocatable: resources("memory=1Gi"), PodsCgroupLimits: resources("memory=1Gi")},
		"a pod with all processes":            {PodPidsLimit: 10, PodsCgroupLimits: resources("pid=10", "cpu=1")},
		"a bound of each pod alone":           {PodPidsLimit: 10},
		"no cgroups":                          {DisableCgroups: true},
		"links and logs in two directories":   {PodLogsDir: "/logs", LogLinksDir: "/links"},
		"allocatable that no cgroup bounds":   {Allocatable: resources("ephemeral-storage=1Gi"), PodsCgroupLimits: resources("cpu=1")},
		"directories of which none is needed": {CgroupRoot: "/pods", NodeCgroup: "/slice"},
	} {
		assert.NoError(t, c.Check(), name)
	}
}

func TestConfig_CheckPodsCgroupLimitsNeedCgroups(t *testing.T) {
	require.ErrorContains(t, node.Config{PodsCgroupLimits: resources("pid=1"), DisableCgroups: true}.Check(), "need cgroups")
}

// All contradictions are reported at once.
func TestConfig_CheckJoinsErrors(t *testing.T) {
	err := node.Config{PodLogsDir: "logs", MaxPods: -1, PodPidsLimit: -1}.Check()
	for _, want := range []string{`"logs"`, "MaxPods", "PodPidsLimit"} {
		require.ErrorContains(t, err, want)
	}
}

func TestConfig_EffectivePodsCgroupLimits(t *testing.T) {
	allocatable := resources("cpu=2", "memory=1Gi", "ephemeral-storage=5Gi")
	for name, test := range map[string]struct {
		node.Config
		want corev1.ResourceList
	}{
		"none":                              {node.Config{}, corev1.ResourceList{}},
		"cpu and memory of allocatable":     {node.Config{Allocatable: allocatable}, resources("cpu=2", "memory=1Gi")},
		"explicit ones before allocatable":  {node.Config{Allocatable: allocatable, PodsCgroupLimits: resources("memory=2Gi", "pid=9")}, resources("cpu=2", "memory=2Gi", "pid=9")},
		"explicitly none":                   {node.Config{Allocatable: allocatable, PodsCgroupLimits: corev1.ResourceList{}}, corev1.ResourceList{}},
		"explicit ones without allocatable": {node.Config{PodsCgroupLimits: resources("cpu=1")}, resources("cpu=1")},
	} {
		assert.Equal(t, test.want, test.EffectivePodsCgroupLimits(), name)
	}
	assert.Len(t, allocatable, 3)
}

func TestConfig_HostIP(t *testing.T) {
	assert.Empty(t, node.Config{}.HostIP())
	assert.Equal(t, "10.0.0.1", node.Config{IPs: []string{"10.0.0.1", "fd00::1"}}.HostIP())
	current := []string{"10.0.0.2"}
	c := node.Config{IPs: []string{"10.0.0.1"}, CurrentIPs: func() []string { return current }}
	assert.Equal(t, "10.0.0.2", c.HostIP())
	current = nil
	assert.Empty(t, c.HostIP(), "not known")
	all := node.Config{IPs: []string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"}}
	assert.Equal(t, []string{"10.0.0.1", "fd00::1"}, all.HostIPs(), "an API server takes one of each family")
}

func TestConfig_Needs(t *testing.T) {
	assert.Empty(t, node.Config{}.Needs())
	needs := node.Config{LogLinksDir: "/links"}.Needs()
	require.Len(t, needs, 1)
	assert.Equal(t, "removal of links to logs (runtime.ContainerRemover)", needs[0].String())
}
