// Ownruntime runs podworkers over a runtime that knows nothing of the CRI: its
// pods are functions of this program, and a pod's image names one.
//
// What a runtime has to bring is in functions.go: three calls that bring a pod up,
// end it and clean up after it, and a view of what runs. Podworkers knows which is
// due for which pod.
//
//	go run ./examples/ownruntime
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ownruntime:", err)
		os.Exit(1)
	}
}

// run has three pods live their lives: a server that is ended after five seconds,
// a job, and one that fails at first.
func run(ctx context.Context, out io.Writer) error {
	rt := newFunctions(out)
	workers, err := podworkers.New(podworkers.Config{Syncer: rt, Inspector: rt, Hooks: podworkers.Hooks{PhaseChanged: rt.moved}})
	if err != nil {
		return err
	}
	rt.ended = func(uid types.UID) { workers.Requeue(uid, podworkers.RequeueEvent) }
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- workers.Run(ctx) }()

	workers.Update(podworkers.Update{Pod: pod("server", corev1.RestartPolicyAlways)})
	workers.Update(podworkers.Update{Pod: pod("job", corev1.RestartPolicyNever)})
	workers.Update(podworkers.Update{Pod: pod("flaky", corev1.RestartPolicyOnFailure)})
	<-time.NewTimer(5 * time.Second).C
	err = workers.Kill(ctx, "server", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true})
	stop()
	return errors.Join(err, <-done)
}

// pod is a pod whose function has its name.
func pod(function string, restart corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: function, Namespace: "default", UID: types.UID(function)},
		Spec:       corev1.PodSpec{RestartPolicy: restart, Containers: []corev1.Container{{Name: "main", Image: function}}},
	}
}
