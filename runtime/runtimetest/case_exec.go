package runtimetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func execCases() []testCase {
	return []testCase{
		{"a command that succeeds returns exit code 0", "exec probes would never pass", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), execTimeout, "echo", "hi")
			c.ok(err, "exec")
			same(c, "hi\n", string(r.GetStdout()), "output")
			same(c, 0, r.GetExitCode(), "exit code")
		}},
		{"a command that fails returns its exit code", "exec probes would never fail, or kill containers for a failed call", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), execTimeout, "sh", "-c", "exit 3")
			c.ok(err, "exec")
			same(c, 3, r.GetExitCode(), "exit code")
		}},
		{"output and errors of a command are kept apart", "probe messages would be mixed up", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), execTimeout, "sh", "-c", "echo out; echo err >&2")
			c.ok(err, "exec")
			same(c, "out\n", string(r.GetStdout()), "stdout")
			same(c, "err\n", string(r.GetStderr()), "stderr")
		}},
		{"a command that takes too long is ended", "hung probes would pile up in the container", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			var err error
			duration := timed(func() { _, err = c.exec(id, 1, "sleep", "1000") })
			c.rejected(err, "a command past its timeout")
			c.check(duration < c.allow(40*time.Second), "it took %s to end a command with a timeout of 1s", duration)
			c.state(id, running)
		}},
		{"a command past its timeout fails with DeadlineExceeded", "a probe's timeout would look like a broken runtime", 0, func(c *CaseT) {
			_, err := c.exec(c.pod("p").start("c", longRunTime), 1, "sleep", "1000")
			same(c, codes.DeadlineExceeded, status.Code(err), "ExecSync with a timeout of 1s: code")
		}},
		{"a command past its timeout does not run on", "hung probes would pile up in the container until it has no memory left", processes, func(c *CaseT) {
			secs, own := uniqueTime(), uniqueTime()
			id := c.pod("p").up("c", fmt.Sprintf("sleep %d &", own))
			c.until(10*time.Second, "the container's own process in its /proc", func() bool { return c.findSleep(id, own) })
			_, err := c.exec(id, 1, "sleep", strconv.Itoa(secs))
			c.rejected(err, "a command past its timeout")
			c.until(10*time.Second, "the end of a command past its timeout of 1s, which still runs in the container", func() bool {
				return !c.findSleep(id, secs)
			})
		}},
		{"a command without a timeout runs to its end", "exec hooks would fail at once: kubelets run them without a timeout", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), 0, "sh", "-c", "sleep 1; exit 3")
			c.ok(err, "ExecSync with a timeout of 0, which is none, of a command that takes 1s")
			same(c, 3, r.GetExitCode(), "exit code")
		}},
		{"commands run side by side", "one slow probe would hold up all others", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			long := time.Minute
			ctx, giveUp := context.WithCancel(c.ctx)
			defer giveUp()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, err := c.rs.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", strconv.Itoa(int(long.Seconds()))}, Timeout: 2 * int64(long.Seconds())})
				if err != nil && ctx.Err() == nil {
					c.Errorf("exec of a command that takes %s: %v", long, err)
				}
			}()
			for range 5 { // the first ones may be ahead of the long command
				c.wait(100 * time.Millisecond)
				_, err := c.exec(id, 2*int64(long.Seconds()), "true")
				c.ok(err, "exec of a short command")
			}
			select {
			case <-ended:
				c.Errorf("a command that takes %s ended before five short ones", long)
			default:
				giveUp()
				<-ended
			}
		}},
		{"a command in an ended container is refused", "a probe of a dead container would hang", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 0")
			c.exited(id)
			_, err := c.exec(id, 5, "echo", "hi")
			c.rejected(err, "exec in an ended container")
		}},
		{"a command in a container that never ran is refused", "a probe that comes too early would hang", 0, func(c *CaseT) {
			_, err := c.exec(c.pod("p").create("c", sh(longRunTime)), 5, "echo", "hi")
			c.rejected(err, "exec in a created container")
		}},
		{"a command in a container that is not there is refused", "it could not distinguish a lost container from a failed probe", 0, func(c *CaseT) {
			_, err := c.exec(unknownID, 5, "echo", "hi")
			c.rejected(err, "exec in an unknown container", codes.NotFound)
		}},
		{"a command that is not there does not succeed", "a mistyped probe would pass", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), 5, "no-such-program")
			c.check(err != nil || r.GetExitCode() != 0, "exec of a program that is not there succeeded")
		}},
		{"much output is not lost", "logs and dumps fetched by hooks would be cut", processes, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), execTimeout, "head", "-c", "1000000", "/dev/zero")
			c.ok(err, "exec")
			same(c, 1000000, len(r.GetStdout()), "bytes of output")
		}},
		{"the output of a command is bounded", "a probe that prints without end would take all memory", processes, func(c *CaseT) {
			// The output alone may be as large as the messages that clients take by default.
			r, err := c.rs.ExecSync(c.ctx, &v1.ExecSyncRequest{
				ContainerId: c.pod("p").start("c", longRunTime), Cmd: sh("head -c 20000000 /dev/zero; exit 3"), Timeout: execTimeout,
			}, grpc.MaxCallRecvMsgSize(64<<20))
			c.ok(err, "exec of a command that prints 20 MB")
			same(c, 3, r.GetExitCode(), "exit code of a command that prints 20 MB and exits with 3")
			c.check(len(r.GetStdout()) > 0 && len(r.GetStdout()) <= 16<<20, "stdout of a command that prints 20 MB has %d bytes, want 16 MiB at most", len(r.GetStdout()))
		}},
		{"a command runs in its own container", "a probe would test another container", processes, func(c *CaseT) {
			p := c.pod("p")
			made := map[string]string{}
			for _, name := range []string{"a", "b"} {
				made[name] = p.start(name, longRunTime, func(cfg *v1.ContainerConfig) { cfg.Envs = []*v1.KeyValue{{Key: "NAME", Value: []byte(name)}} })
			}
			for name, id := range made {
				r, err := c.exec(id, execTimeout, "sh", "-c", "echo $NAME")
				c.ok(err, "exec")
				same(c, name+"\n", string(r.GetStdout()), "the environment of container "+name+", as a command in it sees it,")
			}
		}},
		{"a command gets its arguments as they are", "probes with spaces or quotes would fail", 0, func(c *CaseT) {
			r, err := c.exec(c.pod("p").start("c", longRunTime), execTimeout, "echo", "a  b", "'c'", "$d;e")
			c.ok(err, "exec")
			same(c, "a  b 'c' $d;e\n", string(r.GetStdout()), "output of echo with spaces, quotes and a dollar sign in its arguments")
		}},
		{"a command has the container's environment", "hooks would lack the application's settings", processes, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, func(cfg *v1.ContainerConfig) { cfg.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1")}} })
			r, err := c.exec(id, execTimeout, "sh", "-c", "echo $A")
			c.ok(err, "exec")
			same(c, "1\n", string(r.GetStdout()), "output")
		}},
	}
}

// uniqueTime returns seconds by which a process sleep can be recognized.
func uniqueTime() int { return 100000 + rand.IntN(1e9) }

// findSleep reports whether container id sees a process with the argument secs. The
// pattern of grep does not match its own argument.
func (c *CaseT) findSleep(id string, secs int) bool {
	digits := strconv.Itoa(secs)
	r, err := c.exec(id, execTimeout, "sh", "-c", fmt.Sprintf("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -x '[%s]%s'; true", digits[:1], digits[1:]))
	c.ok(err, "search for a process")
	return strings.TrimSpace(string(r.GetStdout())) == digits
}

// lines returns the entries of a log in CRI format, without their times.
func (p *pod) lines(path string) []string {
	b, err := os.ReadFile(filepath.Join(p.cfg.GetLogDirectory(), path))
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n"), "\n") {
		stamp, rest, _ := strings.Cut(line, " ")
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil && line != "" {
			p.c.Errorf("log line %q does not begin with a time", line)
		}
		out = append(out, rest)
	}
	return out
}

// logged waits until a log has an entry, or ends the case.
func (p *pod) logged(path, line string) {
	p.c.until(20*time.Second, fmt.Sprintf("the log has %q", line), func() bool { return slices.Contains(p.lines(path), line) })
}

// counting returns a script that prints n lines with short pauses.
func counting(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "echo line-%d; sleep 0.05; ", i)
	}
	return b.String() + "exit 0"
}

// numbers returns the log entries of counting.
func numbers(n int) []string {
	out := make([]string, n)
	for i := range n {
		out[i] = fmt.Sprintf("stdout F line-%d", i)
	}
	return out
}

func logCases() []testCase {
	return []testCase{
		{"output and errors are logged as such", "kubectl logs would show nonsense", 0, func(c *CaseT) {
			p := c.pod("p")
			c.exited(p.start("c", "echo out; echo err >&2; exit 0"))
			set(c, []string{"stdout F out", "stderr F err"}, p.lines("c/0.log"), "log")
		}},
		{"the log is complete when the exit is reported", "the last words of a crash would be missing from its message", 0, func(c *CaseT) {
			p := c.pod("p")
			for i := range uint32(5) {
				c.exited(p.start("c", "echo last words; exit 1", withAttempt(i)))
				lines := p.lines(fmt.Sprintf("c/%d.log", i))
				c.check(slices.Contains(lines, "stdout F last words"), "attempt %d: the log has %q", i, lines)
			}
		}},
		{"the last line is logged even without a newline", "the last words of a crash would be missing from kubectl logs", 0, func(c *CaseT) {
			p := c.pod("p")
			c.exited(p.start("c", "echo first; echo -n last words; exit 1"))
			lines := p.lines("c/0.log")
			c.check(slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " last words") }),
				"the log lacks the last line of the output, \"last words\" without a newline: %q", lines)
			c.check(slices.Contains(lines, "stdout F first"), "the log lacks the first line of the output: %q", lines)
		}},
		{"each attempt has its own log", "kubectl logs --previous would show the wrong run", 0, func(c *CaseT) {
			p := c.pod("p")
			c.exited(p.start("c", "echo first"))
			c.exited(p.start("c", "echo second", withAttempt(1)))
			set(c, []string{"stdout F first"}, p.lines("c/0.log"), "first log")
			set(c, []string{"stdout F second"}, p.lines("c/1.log"), "second log")
		}},
		{"a log can be rotated without losing a line", "log rotation would lose output, or go on in the old file and fill the disk", 0, func(c *CaseT) {
			p := c.pod("p")
			var next []string
			for i := uint32(0); i < 3 && len(next) <= 5; i++ { // on a busy machine the container may have ended before the rotation
				id := p.start("c", counting(30), withAttempt(i))
				log := fmt.Sprintf("c/%d.log", i)
				p.logged(log, "stdout F line-3")
				path := filepath.Join(p.cfg.GetLogDirectory(), log)
				c.ok(os.Rename(path, path+".old"), "rename log")
				_, err := c.rs.ReopenContainerLog(c.ctx, &v1.ReopenContainerLogRequest{ContainerId: id})
				if err != nil && c.status(id).GetState() == exited {
					continue
				}
				c.ok(err, "reopen log")
				_, err = os.Stat(path)
				c.ok(err, "the new log")
				c.exited(id)
				next = p.lines(log)
				set(c, numbers(30), slices.Concat(p.lines(log+".old"), next), "both logs")
			}
			c.check(len(next) > 5, "the new log has %d lines", len(next))
		}},
		{"the log of a container that is not there cannot be reopened", "rotation would wait for a container that does not exist", 0, func(c *CaseT) {
			_, err := c.rs.ReopenContainerLog(c.ctx, &v1.ReopenContainerLogRequest{ContainerId: unknownID})
			c.rejected(err, "reopen of an unknown container's log", codes.NotFound)
		}},
		{"a refused reopen makes no file", "rotation would count files that no container writes", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "echo hi")
			c.exited(id)
			path := filepath.Join(p.cfg.GetLogDirectory(), "c/0.log")
			c.ok(os.Remove(path), "remove log")
			if _, err := c.rs.ReopenContainerLog(c.ctx, &v1.ReopenContainerLogRequest{ContainerId: id}); err != nil {
				_, err := os.Stat(path)
				c.check(os.IsNotExist(err), "the refused call made a log file")
			}
		}},
		{"a long line is kept in parts", "long lines would be cut or take all memory", processes, func(c *CaseT) {
			p := c.pod("p")
			c.exited(p.start("c", "head -c 50000 /dev/zero | tr '\\0' x; echo"))
			total := 0
			lines := p.lines("c/0.log")
			for i, l := range lines {
				tag, text, _ := strings.Cut(strings.TrimPrefix(l, "stdout "), " ")
				total += len(text)
				c.check((tag == "F") == (i == len(lines)-1), "part %d of %d has tag %s", i, len(lines), tag)
			}
			same(c, 50000, total, "bytes of the line")
			c.check(len(lines) > 1, "the line was kept in one part")
		}},
		{"the log stays until the container is removed", "logs of crashed containers could not be read", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "echo hi; exit 1")
			c.exited(id)
			c.ok(p.stop(), "stop pod")
			set(c, []string{"stdout F hi"}, p.lines("c/0.log"), "log")
		}},
	}
}
