package hostprocess_test

import (
	"context"
	"fmt"
	"log"
	"runtime"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
)

// A command runs in a container that is a process of this machine.
func Example() {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		fmt.Println("hello") // no other system runs host processes
		return
	}
	rt, err := embedded.New(embedded.Config{Executor: hostprocess.New(hostprocess.Config{Unprivileged: true})})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = rt.Close() }() // kills the process

	ctx, image := context.Background(), &v1.ImageSpec{Image: "tools"}
	if _, err := rt.PullImage(ctx, &v1.PullImageRequest{Image: image}); err != nil {
		log.Fatal(err)
	}
	pod, err := rt.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "tools", Namespace: "default", Uid: "1"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	c, err := rt.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "main"}, Image: image, Command: []string{"sleep", "1000"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rt.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		log.Fatal(err)
	}
	r, err := rt.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: c.GetContainerId(), Cmd: []string{"echo", "hello"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(r.GetStdout()))
	// Output: hello
}
