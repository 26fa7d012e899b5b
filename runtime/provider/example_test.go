package provider_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/provider"
	"github.com/sublet-dev/agent/status"
)

// instant is a provider whose pods are done as soon as they are created.
type instant struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod
}

func (p *instant) CreatePod(_ context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, Message: "done by " + pod.Spec.Containers[0].Image}
	p.pods[pod.Namespace+"/"+pod.Name] = pod
	return nil
}

func (p *instant) DeletePod(_ context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, pod.Namespace+"/"+pod.Name)
	return nil
}

func (p *instant) GetPods(context.Context) (pods []*corev1.Pod, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.pods {
		pods = append(pods, pod)
	}
	return pods, nil
}

// A provider of three methods is an agent's runtime.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	rt, err := provider.New(provider.Config{Provider: &instant{pods: map[string]*corev1.Pod{}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rt.Close()
	pods := podsource.NewMemory()
	pods.Set(newTestPod("work"))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	a, err := agent.New(
		agent.WithRootDir(dir), agent.WithRuntime(rt), agent.WithSource("memory", pods),
		agent.WithStatusSink(status.SinkFunc(func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
			if st.Phase == corev1.PodSucceeded {
				fmt.Println(pod.Name, st.Phase, st.Message)
				stop()
			}
			return nil
		})),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Run(ctx))
	// Output:
	// work Succeeded done by job
	// <nil>
}
