package swap_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// runPod runs an agent with one pod on the simulated runtime. It prints when the pod runs
// and when nothing of it is left.
func runPod(opts ...agent.Option) { runPodOn(agent.WithSimulatedRuntime(), opts...) }

// runPodOn does the same on another runtime.
func runPodOn(rt agent.Option, opts ...agent.Option) {
	settings := corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Optional: new(true)}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &settings}}}}}}
	pod.Namespace, pod.Name = "default", "web"
	dir, err := os.MkdirTemp("", "swap")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source := podsource.NewMemory(pod)
	a, err := agent.New(append([]agent.Option{
		rt, agent.WithNodeName("node"), agent.WithRootDir(filepath.Join(dir, "root")), agent.WithSource("memory", source),
		agent.WithNode(node.Config{DisableCgroups: true}),
	}, opts...)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()

	if waitFor(func() bool { return len(a.Pods()) == 1 && a.Pods()[0].Status.Phase == corev1.PodRunning }) {
		fmt.Println("the pod runs")
		if _, err := a.Stats(ctx); err != nil {
			fmt.Println(err)
		}
	}
	source.Delete("default", "web")
	if waitFor(func() bool { return len(a.Pods()) == 0 }) {
		fmt.Println("the pod is gone")
	}
	cancel()
	if err := <-stopped; err != nil {
		fmt.Println(err)
	}
}

// waitFor polls until condition is true, for at most a minute.
func waitFor(condition func() bool) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

// counter counts calls.
type counter struct{ n atomic.Int64 }

func (c *counter) add() { c.n.Add(1) }

// wasCalled reports whether there were calls. Their number depends on the machine.
func (c *counter) wasCalled() bool { return c.n.Load() > 0 }
