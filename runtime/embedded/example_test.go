package embedded_test

import (
	"context"
	"fmt"
	"log"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// A pod of one container that is run, looked into and removed.
func Example() {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = rt.Close() }()
	cc, err := rt.Dial()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	ctx := context.Background()
	rs, is := v1.NewRuntimeServiceClient(cc), v1.NewImageServiceClient(cc)

	image := &v1.ImageSpec{Image: "example.com/web:1"}
	if _, err := is.PullImage(ctx, &v1.PullImageRequest{Image: image}); err != nil {
		log.Fatal(err)
	}
	pod, err := rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "1"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	c, err := rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "app"}, Image: image,
	}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		log.Fatal(err)
	}
	st, err := rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: c.GetContainerId()})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(st.GetStatus().GetMetadata().GetName(), st.GetStatus().GetState())
	// Output: app CONTAINER_RUNNING
}
