package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

func full() runtime.Injection {
	return runtime.Injection{
		Env:         map[string]string{"A": "1"},
		Mounts:      []runtime.InjectedMount{{HostPath: "/h", ContainerPath: "/c"}},
		Devices:     []runtime.InjectedDevice{{HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "rw"}},
		Annotations: map[string]string{"k": "v"},
		CDIDevices:  []string{"vendor.example/gpu=0"},
		Unified:     map[string]string{"io.weight": "50"},
		Cpuset:      runtime.Cpuset{CPUs: "0-1", MemoryNodes: "0"},
	}
}

func TestInjection_Merge(t *testing.T) {
	merged, err := runtime.Injection{}.Merge(full())
	require.NoError(t, err)
	require.Equal(t, full(), merged)
	merged, err = full().Merge(full())
	require.NoError(t, err, "the same twice is no contradiction")
	require.Equal(t, full(), merged)
	merged, err = full().Merge(runtime.Injection{
		Env: map[string]string{"B": "2"}, Mounts: []runtime.InjectedMount{{HostPath: "/h", ContainerPath: "/d"}}, CDIDevices: []string{"vendor.example/gpu=1"},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"A": "1", "B": "2"}, merged.Env)
	require.Len(t, merged.Mounts, 2)
	require.Equal(t, []string{"vendor.example/gpu=0", "vendor.example/gpu=1"}, merged.CDIDevices)
}

// Plugins that give a container one device ask for different permissions, or for the same in another order.
func TestInjection_MergeJoinsPermissions(t *testing.T) {
	device := func(permissions string) runtime.Injection {
		return runtime.Injection{Devices: []runtime.InjectedDevice{{HostPath: "/dev/vfio/vfio", ContainerPath: "/dev/vfio/vfio", Permissions: permissions}}}
	}
	for _, tc := range [][3]string{{"rw", "mrw", "rwm"}, {"mrw", "rwm", "rwm"}, {"mrw", "mrw", "mrw"}, {"", "r", "r"}, {"w", "r", "rw"}} {
		first, second := device(tc[0]), device(tc[1])
		merged, err := first.Merge(second)
		require.NoError(t, err, tc)
		require.Equal(t, device(tc[2]), merged)
		require.Equal(t, []runtime.Injection{device(tc[0]), device(tc[1])}, []runtime.Injection{first, second}, "the arguments are not changed")
		second.Devices[0].ContainerPath += "/"
		merged, err = first.Merge(second)
		require.NoError(t, err, "the same path")
		require.Equal(t, device(tc[2]), merged)
	}
}

func TestInjection_MergeReportsContradictions(t *testing.T) {
	first := full()
	_, err := first.Merge(runtime.Injection{
		Env:         map[string]string{"A": "2"},
		Mounts:      []runtime.InjectedMount{{HostPath: "/other", ContainerPath: "/c/"}},
		Devices:     []runtime.InjectedDevice{{HostPath: "/dev/other", ContainerPath: "/dev/b", Permissions: "rw"}},
		Annotations: map[string]string{"k": "w"},
		Unified:     map[string]string{"io.weight": "60"},
		Cpuset:      runtime.Cpuset{CPUs: "2", MemoryNodes: "1"},
	})
	for _, want := range []string{"CPUs", "memory nodes", "variable A", "mount at /c", "device at /dev/b", "annotation k", "resource io.weight"} {
		require.ErrorContains(t, err, "two different injections of the "+want)
	}
	require.Equal(t, full(), first, "the arguments are not changed")
}

func TestInjection_Hash(t *testing.T) {
	require.Empty(t, runtime.Injection{Env: map[string]string{}}.Hash())
	require.True(t, runtime.Injection{Env: map[string]string{}}.IsZero())
	hash := full().Hash()
	moved := full()
	moved.Cpuset = runtime.Cpuset{CPUs: "7"}
	require.Equal(t, hash, moved.Hash(), "a container is moved to other CPUs while it runs")
	require.Empty(t, runtime.Injection{Cpuset: runtime.Cpuset{CPUs: "0"}}.Hash())
	require.False(t, runtime.Injection{Cpuset: runtime.Cpuset{CPUs: "0"}}.IsZero())
	require.Equal(t, hash, full().Hash())
	for name, change := range map[string]func(*runtime.Injection){
		"variable":   func(i *runtime.Injection) { i.Env = map[string]string{"A": "2"} },
		"mount":      func(i *runtime.Injection) { i.Mounts[0].ReadOnly = true },
		"device":     func(i *runtime.Injection) { i.Devices[0].Permissions = "r" },
		"annotation": func(i *runtime.Injection) { i.Annotations = nil },
		"CDI":        func(i *runtime.Injection) { i.CDIDevices = nil },
		"resource":   func(i *runtime.Injection) { i.Unified = map[string]string{"io.weight": "60"} },
	} {
		changed := full()
		change(&changed)
		require.NotEqual(t, hash, changed.Hash(), name)
		require.False(t, changed.IsZero())
	}
}
