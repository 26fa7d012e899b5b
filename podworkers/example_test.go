package podworkers_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// printer is a Syncer that prints its calls.
type printer struct{}

func (printer) Sync(_ context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.SyncResult, error) {
	fmt.Println("sync", pod.Name)
	return runtime.SyncResult{Unchanged: true}, nil
}

func (printer) Terminate(_ context.Context, pod *corev1.Pod, _ runtime.Pod, t runtime.Termination) error {
	fmt.Println("terminate", pod.Name, "within", t.GracePeriod)
	return nil
}

func (printer) Finish(_ context.Context, pod *corev1.Pod, _ runtime.Termination) error {
	fmt.Println("finish", pod.Name)
	return nil
}

// GetNewerThan implements Inspector for a runtime without pods.
func (printer) GetNewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	return runtime.Pod{UID: uid, ObservedAt: time.Now()}, nil
}

// IsRunning implements Inspector.
func (printer) IsRunning(types.UID) bool { return false }

func Example() {
	calls := make(chan podworkers.Phase, 3)
	w, err := podworkers.New(podworkers.Config{
		Syncer: printer{}, Inspector: printer{},
		Hooks: podworkers.Hooks{
			PhaseChanged: func(_ types.UID, from, to podworkers.Phase, cause podworkers.Cause) {
				fmt.Println(from, "->", to, cause)
			},
			SyncEnded: func(_ context.Context, call podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
				calls <- call.Phase
			},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", Namespace: "default", Name: "web"}}
	w.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: pod})
	<-calls
	err = w.Kill(ctx, "1", podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 5 * time.Second}, WaitUntilFinished: true})
	fmt.Println("killed:", err)
	cancel()
	<-done
	// Output:
	// sync web
	// Syncing -> Terminating Killed
	// terminate web within 5s
	// Terminating -> Terminated Killed
	// finish web
	// Terminated -> Finished Killed
	// killed: <nil>
}
