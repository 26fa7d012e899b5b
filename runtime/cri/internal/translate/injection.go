package translate

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// InjectEnvironment adds the variables of an injection that the container does not set
// itself, as a kubelet does with those of a device plugin.
func InjectEnvironment(env []EnvVar, i runtime.Injection) []EnvVar {
	for _, name := range slices.Sorted(maps.Keys(i.Env)) {
		if !slices.ContainsFunc(env, func(e EnvVar) bool { return e.name == name }) {
			env = append(env, EnvVar{name, i.Env[name]})
		}
	}
	return env
}

// InjectedMounts are the mounts of an injection. They are private: what is mounted below
// them later is not seen in the container. In a user namespace their files have the ids of the
// container, as those of volumes.
func (tr *Translator) InjectedMounts(i runtime.Injection) []*v1.Mount {
	out := make([]*v1.Mount, 0, len(i.Mounts))
	for _, m := range i.Mounts {
		out = append(out, &v1.Mount{
			ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly,
			UidMappings: tr.MountIDs(tr.Options.UIDMappings), GidMappings: tr.MountIDs(tr.Options.GIDMappings),
		})
	}
	return out
}

func injectedDevices(i runtime.Injection) []*v1.Device {
	var out []*v1.Device
	for _, d := range i.Devices {
		out = append(out, &v1.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	return out
}

func cdiDevices(i runtime.Injection) []*v1.CDIDevice {
	var out []*v1.CDIDevice
	for _, name := range i.CDIDevices {
		out = append(out, &v1.CDIDevice{Name: name})
	}
	return out
}

// injectUnified adds the resources of an injection that the agent does not set itself.
func injectUnified(r *v1.LinuxContainerResources, i runtime.Injection) error {
	for _, file := range slices.Sorted(maps.Keys(i.Unified)) {
		if value, ok := r.Unified[file]; ok && value != i.Unified[file] {
			return fmt.Errorf("injected resource %s=%s: the agent sets it to %s: %w", file, i.Unified[file], value, runtime.ErrInvalid)
		}
		unified(r, file, i.Unified[file])
	}
	return nil
}
