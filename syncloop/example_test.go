package syncloop_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/syncloop"
)

// printing is a Handler that prints its calls.
type printing struct{}

func (printing) HandlePodChange(c podsource.Change) {
	for _, pod := range c.Pods {
		fmt.Println(c.Op, pod.Name)
	}
}

func (printing) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	fmt.Println("wake", uid, why)
}
func (printing) HandlePodRecreations([]types.UID) {}
func (printing) Revisit([]types.UID) time.Time    { return time.Time{} }

// A Loop requires only changes and a Handler. It ends when the changes do.
func Example() {
	changes := make(chan podsource.Change)
	loop, err := syncloop.New(syncloop.Config{Changes: changes, Handler: printing{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", Name: "web"}}
		changes <- podsource.Change{Op: podsource.Add, Pods: []*corev1.Pod{web}}
		changes <- podsource.Change{Op: podsource.Remove, Pods: []*corev1.Pod{web}}
		close(changes)
	}()
	fmt.Println("ended:", loop.Run(context.Background()))
	// Output:
	// ADD web
	// REMOVE web
	// ended: <nil>
}
