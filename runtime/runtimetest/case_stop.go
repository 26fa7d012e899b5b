package runtimetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stopGrace is in seconds: the grace period of a container that ends by itself at its signal. A busy
// machine is not to use it up.
const stopGrace = 60

// up starts a container that runs setup and then sleeps, and waits until setup is done.
func (p *pod) up(name, setup string, edits ...containerEdit) string {
	id := p.start(name, joinScript(setup, "echo up; "+untilStopped), edits...)
	cfg := p.containerConfig(name, nil, edits...)
	p.logged(cfg.GetLogPath(), "stdout F up")
	return id
}

// joinScript puts one script after another; the first may end with &.
func joinScript(first, second string) string {
	if strings.HasSuffix(first, "&") {
		return first + " " + second
	}
	return first + "; " + second
}

// timed returns the duration of a call.
func timed(call func()) time.Duration {
	startTime := time.Now()
	call()
	return time.Since(startTime)
}

// stopDuration stops containers that ignore SIGTERM until one stop takes less than
// limit, three at most, and returns the shortest. A busy machine is slow at times, a
// runtime with another idea of the grace period always.
func (p *pod) stopDuration(grace int64, limit time.Duration) time.Duration {
	c, shortest := p.c, time.Hour
	for i := range uint32(3) {
		id := p.up("c", "trap '' TERM", withAttempt(i))
		shortest = min(shortest, timed(func() { c.ok(c.stop(id, grace), "stop container") }))
		same(c, 137, c.status(id).GetExitCode(), "exit code")
		if shortest < limit {
			break
		}
	}
	return shortest
}

func stopCases() []testCase {
	return []testCase{
		{"a container can end by itself within its grace period", "applications could not finish their work; data would be lost", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 7' TERM")
			duration := timed(func() { c.ok(c.stop(id, stopGrace), "stop container") })
			same(c, 7, c.status(id).GetExitCode(), "the exit code it chose")
			c.check(duration < c.allow(30*time.Second), "the stop took %s", duration)
		}},
		{"a container that does not end is killed after its grace period", "a container that ignores SIGTERM would keep its pod", 0, func(c *CaseT) {
			p := c.pod("p")
			limit := c.allow(5 * time.Second)
			shortest := p.stopDuration(3, limit)
			c.check(shortest >= 2900*time.Millisecond, "it was killed after %s, before its grace period of 3s", shortest)
			c.check(shortest < limit, "it was killed after %s, for a grace period of 3s", shortest)
		}},
		{"without a grace period a container is killed at once", "forced deletion would wait", 0, func(c *CaseT) {
			p := c.pod("p")
			limit := c.allow(4 * time.Second)
			shortest := p.stopDuration(0, limit)
			c.check(shortest < limit, "it was killed after %s, for a grace period of 0", shortest)
		}},
		{"a stop returns when the container has ended", "a pod would be reported as terminated while it still runs", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 0' TERM")
			c.ok(c.stop(id, stopGrace), "stop container")
			c.state(id, exited)
		}},
		{"a container may be stopped again and again", "a retry after a lost answer would never succeed", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 5' TERM")
			for range 3 {
				c.ok(c.stop(id, stopGrace), "stop container")
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
		{"stopping a container that is not there is no error", "a retry after a lost answer would never succeed", 0, func(c *CaseT) {
			c.ok(c.stop(unknownID, 5), "stop unknown container")
		}},
		{"a second stop can shorten the grace period", "a pod deleted by force would keep its long grace period", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			var wg sync.WaitGroup
			first := make(chan error, 1)
			wg.Go(func() { first <- c.stop(id, stopGrace) })
			c.wait(300 * time.Millisecond)
			duration := timed(func() { c.ok(c.stop(id, 1), "second stop") })
			c.check(duration < c.allow(30*time.Second), "the second stop, with a grace period of 1s, took %s", duration)
			duration = timed(wg.Wait)
			c.check(duration < c.allow(30*time.Second), "the first stop went on for %s after the container's end", duration)
			c.ok(<-first, "first stop")
		}},
		{"a stop that was given up can be made again", "a pod whose stop timed out once could never be ended", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: stopGrace})
			cancel()
			c.rejected(err, "a stop that was given up")
			duration := timed(func() { c.ok(c.stop(id, 1), "stop again") })
			c.check(duration < c.allow(30*time.Second), "the second stop took %s", duration)
			c.state(id, exited)
		}},
		{"a stop that was given up does not kill early", "a restarted agent would cut the grace period of all terminating pods", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: stopGrace})
			cancel()
			c.rejected(err, "a stop that was given up")
			c.wait(500 * time.Millisecond)
			c.state(id, running)
		}},
		{"a container's status can be read while it stops", "the status of terminating pods would be missing", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			done := make(chan error, 1)
			go func() { done <- c.stop(id, stopGrace) }()
			c.wait(300 * time.Millisecond)
			duration := timed(func() { c.status(id) })
			c.check(duration < c.allow(20*time.Second), "the status took %s, while a stop took its grace period of %ds", duration, stopGrace)
			c.ok(c.stop(id, 0), "stop container without a grace period")
			c.ok(<-done, "stop container")
		}},
		{"a running container can be removed by force", "a container whose stop hangs could not be cleaned up", 0, func(c *CaseT) {
			id := c.pod("p").start("c", ignoresTERM)
			c.ok(c.remove(id), "remove running container")
			_, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
			c.rejected(err, "status of a removed container", codes.NotFound)
		}},
		{"removing a container that is not there is no error", "garbage collection would keep failing on removed objects", 0, func(c *CaseT) {
			c.ok(c.remove(unknownID), "remove unknown container")
			id := c.pod("p").create("c", sh(longRunTime))
			c.ok(c.remove(id), "remove container")
			c.ok(c.remove(id), "remove container again")
		}},
		{"the stop signal of the container is used", "applications that want another signal would be killed the hard way", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 8' USR1; trap 'exit 9' TERM", func(cfg *v1.ContainerConfig) {
				cfg.StopSignal = v1.Signal_SIGNAL_SIGUSR1
			})
			c.ok(c.stop(id, stopGrace), "stop container")
			st := c.status(id)
			same(c, exited, st.GetState(), "its state after StopContainer")
			same(c, 8, st.GetExitCode(), "the exit code of its SIGUSR1 handler")
		}},
		{"children of a container end with it", "forgotten processes would eat the node", processes, func(c *CaseT) {
			p := c.pod("p")
			secs, own := uniqueTime(), uniqueTime()
			id := p.up("c", fmt.Sprintf("sleep %d & trap '' TERM", secs))
			c.until(10*time.Second, "the child in the container's /proc", func() bool { return c.findSleep(id, secs) })
			c.ok(c.stop(id, 0), "stop container")
			next := p.up("next", fmt.Sprintf("sleep %d &", own))
			c.until(10*time.Second, "the container's own process in its /proc", func() bool { return c.findSleep(next, own) })
			c.check(!c.findSleep(next, secs), "a child of the stopped container still runs")
		}},
		{"a call past its deadline fails with DeadlineExceeded", "it could not distinguish a slow runtime from a broken one", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap '' TERM")
			// It passes during the grace period, not while the signal is sent.
			ctx, cancel := context.WithTimeout(c.ctx, c.allow(2*time.Second))
			defer cancel()
			_, err := c.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: stopGrace})
			same(c, codes.DeadlineExceeded, status.Code(err), "StopContainer that is given less time than its grace period: code")
		}},
	}
}
