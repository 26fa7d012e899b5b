package kuberuntime

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/cases"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/test/utils/ktesting"
	testingclock "k8s.io/utils/clock/testing"
)

// backOffCase is how long the runs of a container that crashes take, and how long it waits after each.
type backOffCase struct {
	Runs  []string `json:"runs"`
	Waits []string `json:"waits"`
}

func TestBackOffCases(t *testing.T) {
	_, _, m, err := createTestRuntimeManager(ktesting.Init(t))
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}}
	cases.Write(t, "runtime/testdata/kubelet-backoffs.jsonl", `
		How long the runs of a container take that crashes, and how long it waits for its restart after each of them.`,
		2000, func(r *rand.Rand, size float64) (backOffCase, []string) {
			clock := testingclock.NewFakeClock(time.Now())
			backOff := flowcontrol.NewFakeBackOff(10*time.Second, 300*time.Second, clock) // as NewMainKubelet sets it up
			backOff.HasExpiredFunc = func(event, last time.Time, _ time.Duration) bool { return event.Sub(last) > 600*time.Second }
			var c backOffCase
			for range 1 + int(9*size) {
				run := cases.One(r, 0, time.Second, time.Minute, 301*time.Second, 599*time.Second, 601*time.Second, time.Hour)
				clock.Step(run)
				status := &kubecontainer.PodStatus{ContainerStatuses: []*kubecontainer.Status{{Name: "a", State: kubecontainer.ContainerStateExited, FinishedAt: clock.Now()}}}
				ended := clock.Now()
				for waits := true; waits; {
					if waits, _, _ = m.doBackOff(t.Context(), pod, &pod.Spec.Containers[0], status, backOff); waits {
						clock.Step(time.Second)
					}
				}
				c.Runs, c.Waits = append(c.Runs, run.String()), append(c.Waits, clock.Since(ended).String())
			}
			last := len(c.Runs) - 1
			return c, []string{fmt.Sprint(c.Waits[max(last-1, 0):]), fmt.Sprint(c.Runs[last], c.Waits[last])}
		})
}
