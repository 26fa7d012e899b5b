package kubeletconfig_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/kubeletconfig"
)

// static is what a configuration with reserved memory has besides; hard thresholds keep 100Mi.
const static = `"memoryManagerPolicy":"Static","cpuManagerPolicy":"static","reservedSystemCPUs":"0"`

// memoryOf is what is reserved of NUMA nodes as text.
func memoryOf(nodes map[int]corev1.ResourceList) map[int]map[string]string {
	out := map[int]map[string]string{}
	for id, list := range nodes {
		out[id] = map[string]string{}
		for name, q := range list {
			out[id][string(name)] = q.String()
		}
	}
	return out
}

// Flags have the kubelet's form, may be repeated, and replace what a file has.
func TestReservedMemory_FileAndFlags(t *testing.T) {
	want := map[int]map[string]string{0: {"memory": "1Gi", "hugepages-1Gi": "2Gi"}, 1: {"memory": "100Mi"}}
	inFile := `"reservedMemory":[{"numaNode":0,"limits":{"memory":"1Gi","hugepages-1Gi":"2Gi"}},{"numaNode":1,"limits":{"memory":"100Mi"}}]`
	for name, tt := range map[string]struct {
		fields string
		flags  []string
	}{
		"file":         {inFile, nil},
		"one flag":     {"", []string{"-reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=100Mi"}},
		"two flags":    {"", []string{"-reserved-memory", "0:memory=1Gi,hugepages-1Gi=2Gi", "-reserved-memory=1:memory=100Mi"}},
		"node twice":   {"", []string{"-reserved-memory=0:memory=1Gi; 1:memory=100Mi;", "-reserved-memory=0:hugepages-1Gi=2Gi"}},
		"flag instead": {`"reservedMemory":[{"numaNode":7,"limits":{"memory":"9Gi"}}]`, []string{"-reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=100Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			fields := header + "," + static
			if tt.fields != "" {
				fields += "," + tt.fields
			}
			c, err := kubeletconfig.Load(file(t, "k.yaml", fields+"}"), "")
			require.NoError(t, err)
			require.NoError(t, apply(c, tt.flags...))
			require.NoError(t, c.Validate())
			assert.Equal(t, want, memoryOf(c.ReservedMemory()))
			reread := kubeletconfig.Default()
			require.NoError(t, reread.Set("memory-manager-policy", "Static"))
			require.NoError(t, reread.Set("reserved-memory", c.Text("reservedMemory")))
			assert.Equal(t, want, memoryOf(reread.ReservedMemory()), "the text of the field is one of the flag")
			require.NoError(t, c.Set("reserved-memory", ""))
			assert.Nil(t, c.ReservedMemory())
		})
	}
}

// Without the policy it is accepted, as by a kubelet, and has no effect.
func TestReservedMemory_NeedsPolicy(t *testing.T) {
	c := with(t, "-reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi")
	settings(t, c)
	assert.Nil(t, c.ReservedMemory())
	assert.Equal(t, []string{"reservedMemory has no effect: memoryManagerPolicy is not Static"}, c.Notices())
	assert.Empty(t, with(t, "-reserved-memory=0:memory=1Gi", "-memory-manager-policy=Static").Notices())
}

func TestReservedMemory_BadFlags(t *testing.T) {
	for value, want := range map[string]string{
		"memory=1Gi":              `-reserved-memory: "memory=1Gi" must be the number of a NUMA node`,
		"a:memory=1Gi":            `"a:memory=1Gi" must be the number of a NUMA node`,
		"0":                       `"0" must be the number of a NUMA node`,
		"9999999999:memory=1Gi":   `must be the number of a NUMA node`,
		"0:":                      `must be memory=1Gi or the like`,
		"0:memory":                `"memory" must be memory=1Gi or the like`,
		"0:memory=lots":           `"memory=lots" must be memory=1Gi or the like`,
		"0:memory=1Gi,memory=2Gi": `NUMA node 0 is given twice with memory`,
	} {
		require.ErrorContains(t, kubeletconfig.Default().Set("reserved-memory", value), want, value)
	}
}

// What is wrong is an error that says which node and which resource; the figures of sums and what to change.
func TestReservedMemory_BadValues(t *testing.T) {
	const sums = "reservedMemory: the memory of all NUMA nodes is "
	for args, want := range map[string]string{
		"-reserved-memory=0:cpu=1":                           `reservedMemory: NUMA node 0: "cpu" must be memory, or hugepages-<size>`,
		"-reserved-memory=-1:memory=100Mi":                   "reservedMemory: NUMA node -1 must be at least 0",
		"-reserved-memory=1:memory=0":                        "reservedMemory: NUMA node 1: 0 of memory must be bytes, more than 0",
		"-reserved-memory=1:hugepages-2Mi=-2Mi":              "reservedMemory: NUMA node 1: -2Mi of hugepages-2Mi must be bytes, more than 0",
		"-reserved-memory=1:memory=100m":                     "reservedMemory: NUMA node 1: 100m of memory must be bytes, more than 0",
		"-reserved-memory=0:memory=50Mi;0:memory=50Mi":       "reservedMemory: NUMA node 0 is given twice with memory; add both",
		"-reserved-memory=0:memory=1Gi":                      sums + "1Gi, but kubeReserved, systemReserved and the hard threshold of memory.available are 100Mi together (0 + 0 + 100Mi): take 924Mi from it",
		"-reserved-memory=0:memory=1Gi -kube-reserved=cpu=1": sums + "1Gi, but kubeReserved",
		"-reserved-memory=0:memory=1Gi;1:memory=1Gi -kube-reserved=memory=2Gi -system-reserved=memory=1Gi": sums + "2Gi, but kubeReserved, systemReserved and the hard threshold of memory.available are 3172Mi together (2Gi + 1Gi + 100Mi): add 1124Mi to it",
		"-reserved-memory=0:hugepages-1Gi=1Gi":                              sums + "0, but kubeReserved",
		"-reserved-memory=0:memory=100Mi,hugepages-64Ki=64Ki":               "reservedMemory: 64Ki of hugepages-64Ki, of which the machine has 0",
		"-reserved-memory=0:memory=100Mi,hugepages-1Gi=3Gi":                 "reservedMemory: 3Gi of hugepages-1Gi, of which the machine has 2Gi",
		"-reserved-memory=0:memory=100Mi;1:hugepages-1Gi=3Gi":               "reservedMemory: 3Gi of hugepages-1Gi",
		"-reserved-memory=0:memory=50Mi -eviction-hard=none":                sums + "50Mi, but kubeReserved, systemReserved and the hard threshold of memory.available are 0 together",
		"-reserved-memory=0:memory=1Gi -eviction-hard=memory.available<50%": sums + "1Gi, but kubeReserved, systemReserved and the hard threshold of memory.available are 4Gi together",
	} {
		c := with(t, append(strings.Fields(args), "-memory-manager-policy=Static", "-cpu-manager-policy=static", "-reserved-cpus=0")...)
		machine := capacity()
		machine["hugepages-1Gi"] = resource.MustParse("2Gi")
		_, err := c.Settings(machine)
		require.ErrorContains(t, err, want, args)
	}
}

// Sums that agree are accepted. Huge pages that are reserved are not allocatable.
func TestReservedMemory_Settings(t *testing.T) {
	for args, pages := range map[string]string{
		"-reserved-memory=0:memory=1Gi;1:memory=100Mi -kube-reserved=memory=1Gi":                                                                                            "2Gi",
		"-reserved-memory=0:memory=1Gi;1:memory=1Gi -kube-reserved=memory=1Gi -system-reserved=memory=924Mi":                                                                "2Gi",
		"-reserved-memory=0:memory=4Gi -eviction-hard=memory.available<50%":                                                                                                 "2Gi",
		"-reserved-memory=0:memory=52428800,hugepages-1Gi=1Gi;1:memory=51200Ki":                                                                                             "1Gi",
		"-reserved-memory=0:hugepages-1Gi=1Gi;1:hugepages-1Gi=1Gi;0:memory=100Mi":                                                                                           "0",
		"-reserved-memory=0:memory=1Gi -system-reserved=memory=1Gi -eviction-hard=none -eviction-soft=memory.available<2Gi -eviction-soft-grace-period=memory.available=1m": "2Gi",
		"": "2Gi", // nothing is kept of any node
	} {
		c := with(t, append(strings.Fields(args), "-memory-manager-policy=Static", "-cpu-manager-policy=static", "-reserved-cpus=0")...)
		machine := capacity()
		machine["hugepages-1Gi"] = resource.MustParse("2Gi")
		s, err := c.Settings(machine)
		require.NoError(t, err, args)
		got := s.Node.Allocatable["hugepages-1Gi"]
		assert.Equal(t, pages, got.String(), args)
		has := s.Node.Capacity["hugepages-1Gi"]
		assert.Equal(t, "2Gi", has.String(), args)
	}
}
