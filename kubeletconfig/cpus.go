package kubeletconfig

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/topology"
)

const staticCPUPolicy = "static"

// ReservedCPUs returns the CPUs of a machine that the cpuManagerPolicy static gives to no container alone:
// those of reservedSystemCPUs or, if there are none, as many as kubeReserved and systemReserved have of cpu,
// rounded up. It is an error if the machine has fewer.
func (c *Config) ReservedCPUs(t topology.Topology) (topology.Set, error) {
	cpus, err := topology.ParseSet(c.kubelet.ReservedSystemCPUs)
	if err != nil {
		return topology.Set{}, fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	if cpus.Len() > 0 {
		return cpus, nil
	}
	reserved := reservedCPU(&c.kubelet)
	options, err := c.CPUManagerOptions()
	if err != nil {
		return topology.Set{}, err
	}
	prefer := options.Preferences()
	prefer.FullCores = false                                                    // what is reserved may be a part of a core, the rest of which is shared
	cpus, ok := t.PickBy(prefer, t.Online(), int(min(reserved.Value(), 1<<20))) // rounds up
	if !ok {
		return topology.Set{}, fmt.Errorf("kubeReserved and systemReserved have %s of cpu, and %d CPUs are online", reserved.String(), t.Online().Len())
	}
	return cpus, nil
}

// reservedCPU returns what kubeReserved and systemReserved have of cpu together, as far as they are valid.
func reservedCPU(k *v1beta1.KubeletConfiguration) resource.Quantity {
	var sum resource.Quantity
	for _, list := range []map[string]string{k.KubeReserved, k.SystemReserved} {
		if q, err := resource.ParseQuantity(list["cpu"]); err == nil {
			sum.Add(q)
		}
	}
	return sum
}
