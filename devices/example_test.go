package devices_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/runtime"
)

// serialPorts is a plugin in the same process: it needs no daemon and no socket.
type serialPorts struct{}

func (serialPorts) Allocate(_ context.Context, ids []string) (runtime.Injection, error) {
	var out runtime.Injection
	for _, id := range ids {
		out.Devices = append(out.Devices, runtime.InjectedDevice{HostPath: "/dev/" + id, ContainerPath: "/dev/" + id, Permissions: "rw"})
	}
	return out, nil
}

// A container that requests a serial port gets one of two.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	m, err := devices.New(devices.Config{StateFile: filepath.Join(dir, "devices.json")})
	if err != nil {
		panic(err)
	}
	const port corev1.ResourceName = "factory.example/serial"
	if err := m.Update(port, serialPorts{}, []devices.Device{{ID: "ttyS0", Healthy: true}, {ID: "ttyS1", Healthy: true}}); err != nil {
		panic(err)
	}
	container := corev1.Container{Name: "plc", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{port: resource.MustParse("1")}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}
	pod.UID = "1"
	injection, err := m.Inject(context.Background(), pod, &container, false)
	fmt.Println(injection.Devices[0].ContainerPath, err)
	// Output: /dev/ttyS0 <nil>
}
