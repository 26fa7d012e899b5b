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

// printer is a Syncer that says what it would do.
type printer struct{}

func (printer) Sync(_ context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.Outcome, error) {
	fmt.Println("sync", pod.Name)
	return runtime.Outcome{Quiet: true}, nil
}

func (printer) Terminate(_ context.Context, pod *corev1.Pod, _ runtime.Pod, e runtime.Ending) error {
	fmt.Println("terminate", pod.Name, "within", e.Grace)
	return nil
}

func (printer) Finish(_ context.Context, pod *corev1.Pod, _ runtime.Ending) error {
	fmt.Println("finish", pod.Name)
	return nil
}

// NewerThan makes it a Seen as well: nothing is ever there.
func (printer) NewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	return runtime.Pod{UID: uid, ObservedAt: time.Now()}, nil
}

func Example() {
	turns := make(chan podworkers.Phase, 3)
	w, err := podworkers.New(podworkers.Config{
		Syncer: printer{}, Seen: printer{},
		Hooks: podworkers.Hooks{
			Moved: func(_ types.UID, from, to podworkers.Phase, why podworkers.Cause) { fmt.Println(from, "->", to, why) },
			Ended: func(t podworkers.Turn, _ time.Duration, _ runtime.Outcome, _ error) { turns <- t.Phase },
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
	w.Update(podworkers.Update{Op: podworkers.Create, Pod: pod})
	<-turns
	err = w.Kill(ctx, "1", podworkers.Kill{Grace: 5 * time.Second, Reclaimed: true})
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
