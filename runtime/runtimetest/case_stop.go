package runtimetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// up starts a container that first runs setup, and waits until it has.
func (p *pod) up(name, setup string, edits ...containerEdit) string {
	id := p.start(name, setup+"; echo up; sleep 1000 & wait", edits...)
	cfg := p.containerConfig(name, nil, edits...)
	p.logged(cfg.GetLogPath(), "stdout F up")
	return id
}

// timed measures a call.
func timed(call func()) time.Duration {
	begin := time.Now()
	call()
	return time.Since(begin)
}

func stopCases() []testCase {
	return []testCase{
		{"a container can end by itself within its grace", "applications could not finish their work; data would be lost", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 7' TERM")
			took := timed(func() { c.ok(c.stop(id, 30), "stop container") })
			same(c, 7, c.status(id).GetExitCode(), "the exit code it chose")
			c.check(took < 15*time.Second, "the stop took %s", took)
		}},
		{"a container that does not end is killed after its grace", "a deaf container would keep its pod for ever", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			took := timed(func() { c.ok(c.stop(id, 2), "stop container") })
			c.check(took >= 1900*time.Millisecond, "it was killed after %s, before its grace of 2s", took)
			c.check(took < 12*time.Second, "the stop took %s for a grace of 2s", took)
			same(c, 137, c.status(id).GetExitCode(), "exit code")
		}},
		{"without a grace a container is killed at once", "forced deletion would wait", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			took := timed(func() { c.ok(c.stop(id, 0), "stop container") })
			c.check(took < 8*time.Second, "the stop took %s", took)
			same(c, 137, c.status(id).GetExitCode(), "exit code")
		}},
		{"a stop returns when the container has ended", "a pod would be told as gone while it still runs", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 0' TERM")
			c.ok(c.stop(id, 10), "stop container")
			c.state(id, exited)
		}},
		{"a container may be stopped again and again", "a retry after a lost answer would fail for ever", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 5' TERM")
			for range 3 {
				c.ok(c.stop(id, 10), "stop container")
			}
			same(c, 5, c.status(id).GetExitCode(), "exit code")
		}},
		{"stopping an ended container changes nothing", "exit codes would be overwritten on the way down", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 4")
			was := c.exited(id)
			c.ok(c.stop(id, 5), "stop ended container")
			same(c, 4, c.status(id).GetExitCode(), "exit code")
			same(c, was.GetFinishedAt(), c.status(id).GetFinishedAt(), "end time")
		}},
		{"stopping a container that never ran is no error", "a pod deleted while it starts would hang", 0, func(c *CaseT) {
			id := c.pod("p").create("c", sh(longRunTime))
			c.ok(c.stop(id, 5), "stop created container")
		}},
		{"stopping a container that is not there is no error", "a retry after a lost answer would fail for ever", 0, func(c *CaseT) {
			c.ok(c.stop(unknownID, 5), "stop unknown container")
		}},
		{"a second stop can shorten the grace", "a pod deleted by force would keep its long grace", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			var wg sync.WaitGroup
			first := make(chan error, 1)
			wg.Go(func() { first <- c.stop(id, 60) })
			c.wait(300 * time.Millisecond)
			took := timed(func() { c.ok(c.stop(id, 1), "second stop") })
			c.check(took < 15*time.Second, "the second stop, with a grace of 1s, took %s", took)
			took = timed(wg.Wait)
			c.check(took < 10*time.Second, "the first stop went on for %s after the container's end", took)
			c.ok(<-first, "first stop")
		}},
		{"a stop that was given up can be made again", "a pod whose stop timed out once could never be ended", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: 60})
			cancel()
			c.refused(err, "a stop that was given up")
			took := timed(func() { c.ok(c.stop(id, 1), "stop again") })
			c.check(took < 20*time.Second, "the second stop took %s", took)
			c.state(id, exited)
		}},
		{"a stop that was given up does not kill early", "a restarted agent would cut the grace of all ending pods", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: 60})
			cancel()
			c.refused(err, "a stop that was given up")
			c.wait(500 * time.Millisecond)
			c.state(id, running)
		}},
		{"a container can be looked at while it stops", "the status of ending pods would be missing", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			done := make(chan error, 1)
			go func() { done <- c.stop(id, 3) }()
			c.wait(300 * time.Millisecond)
			took := timed(func() { c.status(id) })
			c.check(took < time.Second, "the status took %s", took)
			c.ok(<-done, "stop container")
		}},
		{"a running container can be removed by force", "a container whose stop hangs could not be cleaned up", 0, func(c *CaseT) {
			id := c.pod("p").start("c", deaf)
			c.ok(c.remove(id), "remove running container")
			_, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
			c.refused(err, "status of a removed container", codes.NotFound)
		}},
		{"removing a container that is not there is no error", "garbage collection would fail for ever on what is gone", 0, func(c *CaseT) {
			c.ok(c.remove(unknownID), "remove unknown container")
			id := c.pod("p").create("c", sh(longRunTime))
			c.ok(c.remove(id), "remove container")
			c.ok(c.remove(id), "remove container again")
		}},
		{"the stop signal of the container is used", "applications that want another signal would be killed the hard way", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 8' USR1; trap '' TERM", func(cfg *v1.ContainerConfig) {
				cfg.StopSignal = v1.Signal_SIGNAL_SIGUSR1
			})
			c.ok(c.stop(id, 3), "stop container")
			same(c, 8, c.status(id).GetExitCode(), "the exit code of its SIGUSR1 handler")
		}},
		{"children of a container end with it", "forgotten processes would eat the node", processes, func(c *CaseT) {
			p := c.pod("p")
			secs := 100000 + rand.IntN(1e9) // tells this case's child from any other
			id := p.up("c", fmt.Sprintf("sleep %d & trap '' TERM", secs))
			c.ok(c.stop(id, 0), "stop container")
			next := p.start("next", longRunTime)
			r, err := c.exec(next, 10, "sh", "-c", fmt.Sprintf("grep -l '^sleep.%d' /proc/[0-9]*/cmdline 2>/dev/null; true", secs))
			c.ok(err, "look for the child")
			c.check(len(r.GetStdout()) == 0, "a child of the stopped container lives on: %s", r.GetStdout())
		}},
		{"a call's deadline is told by its code", "it could not tell a slow runtime from a broken one", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			ctx, cancel := context.WithTimeout(c.ctx, 300*time.Millisecond)
			defer cancel()
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: 60})
			same(c, codes.DeadlineExceeded, status.Code(err), "code")
		}},
	}
}
