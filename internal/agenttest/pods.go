package agenttest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// Pod returns a pod in the namespace default with the container main. script has entries
// of its simulation, such as "run-for=1s".
func Pod(name string, script ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
	}
	for _, entry := range script {
		key, value, _ := strings.Cut(entry, "=")
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	return pod
}

// PodWithPolicy is Pod with a restart policy.
func PodWithPolicy(name string, policy corev1.RestartPolicy, script ...string) *corev1.Pod {
	pod := Pod(name, script...)
	pod.Spec.RestartPolicy = policy
	return pod
}

// SizedPod returns a defaulted pod with the UID uid-NAME and an image of its own, which
// requests memory and uses as much as usage describes, such as "0s=1Mi,10m=700Mi".
func SizedPod(name, memory, usage string) *corev1.Pod {
	pod := Pod(name, "memory="+usage)
	pod.UID = types.UID("uid-" + name)
	pod.Spec.Containers[0].Image = "img-" + name
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	podspec.Default(pod)
	return pod
}

// Pods returns n pods, pod-00000 and so on.
func Pods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = Pod(fmt.Sprintf("pod-%05d", i))
	}
	return pods
}
