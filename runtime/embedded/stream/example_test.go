package stream_test

import (
	"context"
	"fmt"
	"net"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

// With a server, the runtime returns URLs for exec. Here a client gets one.
func ExampleNew() {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server, err := stream.New(rt, listener)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()

	id := startContainer(ctx, rt)
	resp, err := rt.Exec(ctx, &v1.ExecRequest{ContainerId: id, Cmd: []string{"sh"}, Stdout: true})
	fmt.Println(strings.HasPrefix(resp.GetUrl(), "http://"+listener.Addr().String()+"/exec/"), err)
	cancel()
	fmt.Println(<-done)
	// Output:
	// true <nil>
	// <nil>
}

// startContainer starts a pod of one container.
func startContainer(ctx context.Context, rt *embedded.Runtime) string {
	config := &v1.PodSandboxConfig{Metadata: &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "1"}}
	sandbox, err := rt.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: config})
	if err != nil {
		panic(err)
	}
	image, err := rt.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "nginx"}})
	if err != nil {
		panic(err)
	}
	container, err := rt.CreateContainer(ctx, &v1.CreateContainerRequest{
		PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: config,
		Config: &v1.ContainerConfig{
			Metadata: &v1.ContainerMetadata{Name: "main"}, Image: &v1.ImageSpec{Image: image.GetImageRef()},
		},
	})
	if err != nil {
		panic(err)
	}
	if _, err = rt.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: container.GetContainerId()}); err != nil {
		panic(err)
	}
	return container.GetContainerId()
}
