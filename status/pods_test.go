package status_test

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pod builds a pod from words: "policy=Never", "init:a", "sidecar:b",
// "main:c", "debug:d"; a word may end in "/Policy" for the container's own.
func pod(words ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1", Generation: 3},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, NodeName: "n"},
	}
	for _, w := range words {
		if policy, ok := strings.CutPrefix(w, "policy="); ok {
			p.Spec.RestartPolicy = corev1.RestartPolicy(policy)
			continue
		}
		kind, name, _ := strings.Cut(w, ":")
		name, own, _ := strings.Cut(name, "/")
		c := corev1.Container{Name: name, Image: "img-" + name}
		if own != "" {
			policy := corev1.ContainerRestartPolicy(own)
			c.RestartPolicy = &policy
		}
		switch kind {
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case "sidecar":
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case "main":
			p.Spec.Containers = append(p.Spec.Containers, c)
		case "debug":
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: c.Image},
			})
		default:
			panic(w)
		}
	}
	return p
}

func withUID(p *corev1.Pod, uid types.UID) *corev1.Pod {
	p = p.DeepCopy()
	p.UID, p.Name = uid, "p-"+string(uid)
	return p
}

// view is an inspection with a ready sandbox and the given containers, newest
// first.
func view(containers ...runtime.Container) runtime.Pod {
	return runtime.Pod{
		UID: "uid-1", Namespace: "ns", Name: "p", ObservedAt: testTime,
		Sandboxes:  []runtime.Sandbox{{ID: "s0", State: runtime.SandboxReady, IPs: []string{"10.0.0.7"}}},
		Containers: containers,
	}
}

func running(name string, attempt uint32) runtime.Container {
	return runtime.Container{
		ID: id(name, attempt), Name: name, SandboxID: "s0", Attempt: attempt, State: runtime.Running,
		Image: "img-" + name, ImageID: "sha256:" + name, Started: at(attempt, 0),
	}
}

func exited(name string, attempt uint32, code int32) runtime.Container {
	c := running(name, attempt)
	c.State, c.ExitCode, c.Finished = runtime.Exited, code, at(attempt, 30)
	return c
}

func inOldSandbox(c runtime.Container) runtime.Container {
	c.SandboxID = "s-old"
	return c
}

func created(name string, attempt uint32) runtime.Container {
	c := running(name, attempt)
	c.State, c.Started = runtime.Created, time.Time{}
	return c
}

func unknown(name string, attempt uint32) runtime.Container {
	c := running(name, attempt)
	c.State = runtime.Unknown
	return c
}

func id(name string, attempt uint32) string { return name + "-" + string(rune('0'+attempt)) }

func at(attempt uint32, seconds int) time.Time {
	return testTime.Add(time.Duration(attempt)*time.Minute + time.Duration(seconds)*time.Second)
}
