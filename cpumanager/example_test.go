package cpumanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// A container of a Guaranteed pod gets two of four CPUs, and another one shares the rest.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	m, err := cpumanager.New(cpumanager.Config{
		Topology:  newMachine(1, 4).topology, // topology.Detect(os.DirFS("/")) on a real one
		Reserved:  topology.NewSet(0),
		StateFile: filepath.Join(dir, "cpus.json"),
	})
	if err != nil {
		panic(err)
	}
	rt := new(fakeRuntime) // a *cri.Client
	r, err := m.Runner(rt, rt.list)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()

	alone, shared := pod("alone", container("c", "2")), pod("shared", container("c", "500m"))
	for _, p := range []*corev1.Pod{alone, shared} {
		i, err := m.Inject(ctx, p, &p.Spec.Containers[0], false)
		fmt.Println(p.Name, i.Cpuset.CPUs, err)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// alone 1-2 <nil>
	// shared 0,3 <nil>
	// <nil>
}
