package podsapi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/server/podsapi"
)

// A Server is a runner of an agent, whose Components have what it needs:
//
//	agent.WithRunner("pods API", func(c *agent.Components) (agent.Runner, error) {
//		return podsapi.New(podsapi.Config{
//			Path: "/var/lib/kubelet/pods-api/kubelet.sock",
//			Pods: c.Operator.Pods, WatchList: c.Watchers.WatchList, Ready: c.Sources.Healthy,
//		})
//	})
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "kubelet.sock")
	web := pod("web", corev1.PodRunning)
	var hub podwatch.Hub
	s, err := podsapi.New(podsapi.Config{
		Path:      socket,
		Pods:      func() []*corev1.Pod { return []*corev1.Pod{web} },
		WatchList: hub.WatchList,
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	stream, err := api.NewPodsClient(conn).WatchPods(ctx, &api.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		panic(err)
	}
	event, err := stream.Recv()
	if err != nil {
		panic(err)
	}
	var added corev1.Pod
	if err := added.Unmarshal(event.GetPod()); err != nil {
		panic(err)
	}
	fmt.Println(event.GetType(), added.Name, added.Status.Phase)
	_ = conn.Close()
	cancel() // a daemon runs until it is stopped
	fmt.Println(<-done)
	// Output:
	// ADDED web Running
	// <nil>
}
