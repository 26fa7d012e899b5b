package simulated_test

import (
	"context"
	"fmt"
	"log"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// A database that answers every command, by the script of its image.
func Example() {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{
		Images: map[string]simulated.Script{"database": {ExecOutput: "accepting connections"}},
	})})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = rt.Close() }()

	ctx, image := context.Background(), &v1.ImageSpec{Image: "database"}
	if _, err := rt.PullImage(ctx, &v1.PullImageRequest{Image: image}); err != nil {
		log.Fatal(err)
	}
	pod, err := rt.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "database", Namespace: "default", Uid: "1"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	c, err := rt.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "main"}, Image: image,
	}})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rt.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		log.Fatal(err)
	}
	r, err := rt.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: c.GetContainerId(), Cmd: []string{"pg_isready"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%d", r.GetStdout(), r.GetExitCode())
	// Output:
	// accepting connections
	// 0
}
