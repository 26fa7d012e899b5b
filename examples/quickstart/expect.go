package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// expectations are what each sample pod should have done by the end, according to
// the statuses that the agent sent.
var expectations = []struct {
	pod, should string
	check       func(pods []*row) error
}{
	{"web", "run two containers, both ready", one(func(r *row) error {
		return wantReady(r, 2)
	})},
	{"ordered", "run after two init containers in order", one(func(r *row) error {
		for _, c := range r.status.InitContainerStatuses {
			if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
				return fmt.Errorf("init container %s is %s", c.Name, state(c))
			}
		}
		first, second := r.status.InitContainerStatuses[0].State.Terminated, r.status.InitContainerStatuses[1].State.Terminated
		if second.StartedAt.Before(&first.FinishedAt) {
			return errors.New("the second init container started before the first had ended")
		}
		return wantReady(r, 1)
	})},
	{"job", "succeed once", one(wantPhase(corev1.PodSucceeded))},
	{"failed-job", "fail for good with exit code 3", one(func(r *row) error {
		if t := r.status.ContainerStatuses[0].State.Terminated; t == nil || t.ExitCode != 3 || restarts(r.status) != 0 {
			return fmt.Errorf("container is %s", r.detail)
		}
		return wantPhase(corev1.PodFailed)(r)
	})},
	{"crash-loop", "restart and back off", one(func(r *row) error {
		if restarts(r.status) < 1 || !strings.Contains(strings.Join(r.history, "\n"), "CrashLoopBackOff") {
			return fmt.Errorf("%d restarts and %q", restarts(r.status), r.history)
		}
		return nil
	})},
	{"slow-end", "get its grace period and exit by itself", one(func(r *row) error {
		if t := r.status.ContainerStatuses[0].State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Errorf("container is %s, so it was killed", r.detail)
		}
		return wantDeleted(r)
	})},
	{"edited", "finish before its new version starts", func(pods []*row) error {
		if len(pods) != 2 {
			return fmt.Errorf("%d pods, want the old and the new one", len(pods))
		}
		slices.SortFunc(pods, func(x, y *row) int {
			return x.status.StartTime.Compare(y.status.StartTime.Time)
		})
		terminated, running := pods[0].status.ContainerStatuses[0].State.Terminated, pods[1].status.ContainerStatuses[0].State.Running
		if terminated == nil || running == nil || running.StartedAt.Time.Before(terminated.FinishedAt.Truncate(time.Second)) {
			return fmt.Errorf("old %s, new %s", pods[0].detail, pods[1].detail)
		}
		return errors.Join(wantDeleted(pods[0]), wantReady(pods[1], 1))
	}},
	{"deleted", "terminate and leave nothing", one(wantDeleted)},
	{"sidecar", "succeed, with its sidecar terminated last", one(wantPhase(corev1.PodSucceeded))},
	{"config", "read its config map and succeed", one(wantPhase(corev1.PodSucceeded))},
	{"becomes-invalid", "run on with the last good manifest", one(func(r *row) error { return wantReady(r, 1) })},
}

func one(check func(*row) error) func([]*row) error {
	return func(pods []*row) error {
		if len(pods) != 1 {
			return fmt.Errorf("%d pods of that name were reported, want one", len(pods))
		}
		return check(pods[0])
	}
}

func wantReady(r *row, containers int) error {
	if got := readiness(r.status); got != fmt.Sprintf("%d/%d", containers, containers) {
		return fmt.Errorf("ready %s: %s", got, r.detail)
	}
	return wantPhase(corev1.PodRunning)(r)
}

func wantPhase(phase corev1.PodPhase) func(*row) error {
	return func(r *row) error {
		if r.status.Phase != phase {
			return fmt.Errorf("phase %s: %s", r.status.Phase, r.detail)
		}
		return nil
	}
}

func wantDeleted(r *row) error {
	if !r.deleted {
		return fmt.Errorf("not deleted: %s", r.detail)
	}
	return nil
}

// checkTerminated returns an error if a container still runs.
func (b *board) checkTerminated() error {
	for _, r := range b.rows() {
		if r.deleted {
			continue
		}
		// A drain keeps the phase of a pod that the next agent restarts, and terminates its containers.
		for _, c := range slices.Concat(r.status.InitContainerStatuses, r.status.ContainerStatuses) {
			if c.State.Running != nil {
				return fmt.Errorf("container %s of %s runs", c.Name, r.name)
			}
		}
	}
	return nil
}

func (b *board) named(name string) (found []*row) {
	for _, r := range b.rows() {
		if strings.HasPrefix(r.name, name+"-") && r.pod.Labels["app"] == name {
			found = append(found, r)
		}
	}
	return found
}

// summarize prints the result of each sample next to what it should have done, and
// reports whether all of them are as expected.
func (b *board) summarize(out io.Writer, sourceErrors []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	ok := true
	fmt.Fprintf(out, "\nwhat ran:\n")
	line := func(pod, should string, err error) {
		mark, why := "ok  ", ""
		if err != nil {
			mark, why, ok = "FAIL", " ("+err.Error()+")", false
		}
		fmt.Fprintf(out, "  %s %-20s should %s%s\n", mark, pod, should, why)
	}
	for i, e := range expectations {
		line(e.pod, e.should, b.results[i])
	}
	for _, name := range []string{"broken", "becomes-invalid"} {
		var err error
		if !slices.ContainsFunc(sourceErrors, func(f string) bool { return strings.Contains(f, name+".yaml") }) {
			err = errors.New("no source error mentions it")
		}
		line(name+".yaml", "be reported as a source error and affect no other pod", err)
	}
	line("all", "have terminated when the agent has stopped", b.checkTerminated())
	return ok
}
