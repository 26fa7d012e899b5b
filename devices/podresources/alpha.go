package podresources

import (
	"context"

	apialpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/sublet-dev/agent/podspec"
)

// alphaServer serves version v1alpha1 of the API, which kubelets still have for monitors: devices of
// plugins alone, without their NUMA nodes.
type alphaServer struct {
	apialpha.UnimplementedPodResourcesListerServer

	s *Server
}

// List returns the devices of the regular containers of all pods that have not ended.
func (a alphaServer) List(_ context.Context, _ *apialpha.ListPodResourcesRequest) (*apialpha.ListPodResourcesResponse, error) {
	r := &apialpha.ListPodResourcesResponse{}
	for _, pod := range a.s.cfg.Pods() {
		if podspec.IsTerminalPhase(pod.Status.Phase) {
			continue
		}
		list := a.s.devicesOf(pod)
		out := &apialpha.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			c := &apialpha.ContainerResources{Name: pod.Spec.Containers[i].Name}
			for _, d := range list[c.Name] {
				c.Devices = append(c.Devices, &apialpha.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
			}
			out.Containers = append(out.Containers, c)
		}
		r.PodResources = append(r.PodResources, out)
	}
	return r, nil
}
