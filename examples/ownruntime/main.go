// Ownruntime runs podworkers with a runtime that does not implement the CRI: its
// pods are functions of this program, and a pod's image is the name of one.
//
// The file functions.go has everything that such a runtime implements: three calls
// that sync, terminate and clean up a pod, and one that inspects it. Package
// podworkers decides which call is due for which pod.
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
	"github.com/sublet-dev/agent/runtime"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ownruntime:", err)
		os.Exit(1)
	}
}

// run runs three pods: a server that is killed after five seconds, a job, and one
// that fails at first.
func run(ctx context.Context, out io.Writer) error {
	rt := newFunctions(out)
	workers, err := podworkers.New(podworkers.Config{Syncer: rt, Inspector: rt, Hooks: podworkers.Hooks{PhaseChanged: rt.phaseChanged}})
	if err != nil {
		return err
	}
	rt.onReturn = func(uid types.UID) { workers.Requeue(uid, podworkers.RequeueEvent) }
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- workers.Run(ctx) }()

	workers.Update(podworkers.Update{Pod: pod("server", corev1.RestartPolicyAlways)})
	workers.Update(podworkers.Update{Pod: pod("job", corev1.RestartPolicyNever)})
	workers.Update(podworkers.Update{Pod: pod("flaky", corev1.RestartPolicyOnFailure)})
	<-time.NewTimer(5 * time.Second).C
	err = workers.Kill(ctx, "server", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true})
	stop()
	return errors.Join(err, <-done)
}

// pod returns a pod that runs the function of the same name.
func pod(function string, restart corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: function, Namespace: "default", UID: types.UID(function)},
		Spec:       corev1.PodSpec{RestartPolicy: restart, Containers: []corev1.Container{{Name: "main", Image: function}}},
	}
}
