package volume_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

// objects is the smallest podspec.Objects there is.
type objects map[podspec.Ref]podspec.Object

func (o objects) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	if found, ok := o[ref]; ok {
		return found, nil
	}
	return podspec.Object{}, podspec.ErrObjectNotFound
}

// A ConfigMap as files, and how a change reaches a running container.
func Example() {
	root, _ := os.MkdirTemp("", "volumes")
	defer func() { _ = os.RemoveAll(root) }()
	volumes, err := volume.New(volume.Config{Root: root})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "default", "web", "1234"
	pod.Spec.Volumes = []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}},
	}}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "conf", MountPath: "/etc/web"}}}}

	for _, port := range []string{"80", "8080"} {
		o := podspec.Object{
			Ref:  podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "web"},
			Data: map[string][]byte{"port": []byte(port)},
		}
		mounted, err := volumes.Mount(context.Background(), pod, objects{o.Ref: o})
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := os.ReadFile(filepath.Join(mounted["conf"].HostPath, "port"))
		fmt.Println(string(text))
	}
	fmt.Println(volumes.PodUIDs(), volumes.Unmount(context.Background(), "1234"), volumes.PodUIDs())
	// Output:
	// 80
	// 8080
	// [1234] <nil> []
}
