package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Injection is what a container gets in addition to its spec: what a device plugin, a CDI
// registry or an injector of yours has decided for it.
type Injection struct {
	Env         map[string]string `json:"env,omitempty"` // variables that the spec does not set itself
	Mounts      []InjectedMount   `json:"mounts,omitempty"`
	Devices     []InjectedDevice  `json:"devices,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"` // of the container in the runtime
	// CDIDevices are fully qualified names of the Container Device Interface, such as
	// vendor.com/gpu=0.
	CDIDevices []string `json:"cdiDevices,omitempty"`
	// Unified are resources: files of the container's cgroup v2 with what is written to them, such as
	// io.max. What the agent writes itself, as for memory limits, cannot be injected.
	Unified map[string]string `json:"unified,omitempty"`
	// Cpuset may change while the container runs, so that it is no part of the Hash.
	Cpuset Cpuset `json:"-"`
}

// Cpuset says where a container runs on the node: lists in the form of the kernel, such as
// 0-3,8. An empty one is no restriction, or no change.
type Cpuset struct {
	CPUs        string
	MemoryNodes string // NUMA nodes of its memory
}

// InjectedMount is a path of the node that is mounted into a container.
type InjectedMount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// InjectedDevice is a device node of the node that appears in a container.
type InjectedDevice struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
	Permissions   string `json:"permissions"` // of the device cgroup: any of r, w and m
}

// IsZero reports whether nothing is injected.
func (i Injection) IsZero() bool {
	return len(i.Env)+len(i.Mounts)+len(i.Devices)+len(i.Annotations)+len(i.CDIDevices)+len(i.Unified) == 0 && i.Cpuset == Cpuset{}
}

// Merge returns the injections of i and more together. The same mount, device, variable or
// CDI name twice counts once; a device has the permissions of both. Two that contradict each
// other are an error that names both.
func (i Injection) Merge(more Injection) (Injection, error) {
	var errs []error
	out := Injection{
		Env:         mergeMaps("variable", i.Env, more.Env, &errs),
		Annotations: mergeMaps("annotation", i.Annotations, more.Annotations, &errs),
		Unified:     mergeMaps("resource", i.Unified, more.Unified, &errs),
		Mounts: mergeLists(i.Mounts, more.Mounts, func(a, b InjectedMount) error {
			return contradiction("mount at", a.ContainerPath, b.ContainerPath, a == b)
		}, &errs),
		Devices:    mergeDevices(i.Devices, more.Devices, &errs),
		CDIDevices: mergeLists(i.CDIDevices, more.CDIDevices, func(string, string) error { return nil }, &errs),
		Cpuset: Cpuset{
			CPUs:        mergeStrings("CPUs", i.Cpuset.CPUs, more.Cpuset.CPUs, &errs),
			MemoryNodes: mergeStrings("memory nodes", i.Cpuset.MemoryNodes, more.Cpuset.MemoryNodes, &errs),
		},
	}
	return out, errors.Join(errs...)
}

func contradiction(what, a, b string, same bool) error {
	if path.Clean(a) != path.Clean(b) || same {
		return nil
	}
	return fmt.Errorf("two different injections of the %s %s", what, a)
}

func mergeStrings(what, a, b string, errs *[]error) string {
	if a != "" && b != "" && a != b {
		*errs = append(*errs, fmt.Errorf("two different injections of the %s", what))
	}
	return cmp.Or(b, a)
}

func mergeMaps(what string, a, b map[string]string, errs *[]error) map[string]string {
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	for _, k := range slices.Sorted(maps.Keys(b)) {
		if v, ok := a[k]; ok && v != b[k] {
			*errs = append(*errs, fmt.Errorf("two different injections of the %s %s", what, k))
		}
		out[k] = b[k]
	}
	return out
}

// mergeDevices joins the permissions of one device: plugins that share one, such as /dev/vfio/vfio, ask for
// different ones.
func mergeDevices(a, b []InjectedDevice, errs *[]error) []InjectedDevice {
	b = slices.Clone(b)
	a = slices.Clone(a)
	for i := range a {
		for j := range b {
			if a[i].HostPath == b[j].HostPath && path.Clean(a[i].ContainerPath) == path.Clean(b[j].ContainerPath) {
				a[i].Permissions = joinPermissions(a[i].Permissions, b[j].Permissions)
				b[j] = a[i]
			}
		}
	}
	return mergeLists(a, b, func(a, b InjectedDevice) error {
		return contradiction("device at", a.ContainerPath, b.ContainerPath, a == b)
	}, errs)
}

func joinPermissions(a, b string) string {
	if a == b {
		return a
	}
	return strings.Map(func(p rune) rune {
		if strings.ContainsRune(a+b, p) {
			return p
		}
		return -1
	}, "rwm")
}

func mergeLists[T comparable](a, b []T, check func(a, b T) error, errs *[]error) []T {
	out := slices.Clone(a)
	for _, v := range b {
		for _, w := range a {
			if err := check(w, v); err != nil {
				*errs = append(*errs, err)
			}
		}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// Hash returns a hash of what is injected, "" if nothing is. The order of lists counts, as
// it does for a runtime. The Cpuset does not count.
func (i Injection) Hash() string {
	i.Cpuset = Cpuset{}
	if i.IsZero() {
		return ""
	}
	return hashJSON("", i)
}
