package podsync_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// nopRuntime is a runtime that only prints the calls it gets.
type nopRuntime struct{}

func (nopRuntime) Apply(_ context.Context, pod *corev1.Pod, plan []runtime.Action, _ runtime.RunOptions) runtime.ApplyResult {
	for _, a := range plan {
		fmt.Println(pod.Name, a.Type, fmt.Sprintf("%q", a.Container))
	}
	return runtime.ApplyResult{Changed: true}
}

func (nopRuntime) Kill(_ context.Context, pod *corev1.Pod, _ runtime.Pod, e runtime.Termination) error {
	fmt.Println(pod.Name, "Kill", e.GracePeriod)
	return nil
}

func (nopRuntime) Remove(context.Context, runtime.Pod) error { return nil }

func (nopRuntime) GetNewerThan(context.Context, types.UID, time.Time) (runtime.Pod, error) {
	return runtime.Pod{}, nil
}

func (nopRuntime) RequestInspection(types.UID) {}

func (nopRuntime) Observe(*corev1.Pod, runtime.Report) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending}
}

func (nopRuntime) Get(types.UID) (corev1.PodStatus, bool) { return corev1.PodStatus{}, false }

// A pod goes through the three transactions on a runtime that is not CRI.
func Example() {
	dir, err := os.MkdirTemp("", "podsync")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	s, err := podsync.New(podsync.Config{
		Runtime: nopRuntime{}, PodCache: nopRuntime{}, Statuses: nopRuntime{},
		PodsDir: filepath.Join(dir, "pods"), LogsDir: filepath.Join(dir, "logs"),
	})
	if err != nil {
		panic(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx"}}},
	}
	podspec.Default(pod)
	ctx, end := context.Background(), runtime.Termination{GracePeriod: podspec.GracePeriod(pod), Deleted: true}
	_, err = s.Sync(ctx, pod, runtime.Pod{})
	fmt.Println(err, s.Terminate(ctx, pod, runtime.Pod{}, end), s.Finish(ctx, pod, end))
	// Output:
	// web CreateSandbox ""
	// web StartContainer "main"
	// web Kill 30s
	// <nil> <nil> <nil>
}
