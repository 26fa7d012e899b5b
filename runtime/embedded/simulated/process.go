package simulated

import (
	"context"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/signals"
)

// process is a simulated container. While idle it is a timer.
type process struct {
	s           *Executor
	c           *embedded.Container
	script      Script
	io          embedded.IO
	exited      func(embedded.Exit)
	start       time.Time
	stopReading context.CancelFunc // ends readStdin; nil without stdin

	mu       sync.Mutex // guards the rest
	timer    *time.Timer
	printing bool          // a tick prints; others print nothing meanwhile
	limit    uint64        // of memory; 0 is none
	line     int           // next line of output
	round    time.Duration // start of the current round of output
	stopAt   time.Duration // when it exits after a stop signal; 0: no signal yet
	stopCode int32
	execs    int
	requests int
	closers  map[io.Closer]struct{} // connections and commands, which end with the container
	ended    bool
}

// plannedExit returns when and how the container exits if nothing else happens. While a
// client holds up its output, it is killed only. The caller holds mu.
func (p *process) plannedExit() (time.Duration, embedded.Exit) {
	end, exit := p.plannedKill()
	if p.printing {
		return end, exit
	}
	run := forever
	if p.script.RunFor > 0 {
		run = p.script.RunFor
	}
	if run <= end {
		return run, embedded.Exit{Code: byAttempt(p.script.ExitCodes, int(p.c.Config.GetMetadata().GetAttempt()))}
	}
	return end, exit
}

// plannedKill returns when and how the container is killed by a stop signal or for its
// memory. The caller holds mu.
func (p *process) plannedKill() (time.Duration, embedded.Exit) {
	end, exit := forever, embedded.Exit{}
	if p.stopAt > 0 {
		end, exit = p.stopAt, embedded.Exit{Code: p.stopCode}
	}
	oom := p.script.OOMAfter
	if hit, ok := reaches(p.script.Memory, p.limit); ok && p.limit > 0 && (oom == 0 || hit < oom) {
		oom = max(hit, 1)
	}
	if oom > 0 && oom < end {
		end, exit = oom, embedded.Exit{Code: 137, Reason: embedded.ReasonOOMKilled}
	}
	return end, exit
}

// nextLine returns when the next line is printed. The caller holds mu.
func (p *process) nextLine() time.Duration {
	if p.line < len(p.script.Output) && !p.printing {
		return p.round + p.script.Output[p.line].At
	}
	return forever
}

// arm sets the timer to the next line or the exit. The caller holds mu.
func (p *process) arm() {
	end, _ := p.plannedExit()
	next := min(end, p.nextLine())
	if next == forever {
		p.timer.Stop()
		return
	}
	p.timer.Reset(max(0, next-time.Since(p.start)))
}

// tick prints the lines that are due, and exits. The timer runs it, also while another one
// prints.
func (p *process) tick() {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	now := time.Since(p.start)
	end, exit := p.plannedExit()
	if due := p.takeLines(min(now, end)); len(due) > 0 {
		p.printing = true
		if now < end {
			p.arm()
		}
		p.mu.Unlock()
		p.print(due)
		p.mu.Lock()
		p.printing = false
	}
	isLast := !p.ended && now >= end // it may have been killed while a client held up the output
	switch {
	case isLast:
		p.ended = true
	case !p.ended:
		p.arm()
	}
	p.mu.Unlock()
	if isLast {
		p.finish(exit)
	}
}

// maxDueLines bounds how many lines of repeated output are printed at once: the others are due
// still, until the container exits. A client may have held it up for long, or it is repeated faster
// than it can be printed.
const maxDueLines = 1000

// takeLines returns the lines that are due, once. The caller holds mu.
func (p *process) takeLines(now time.Duration) (due []OutputLine) {
	for p.nextLine() <= now && (p.line > 0 || len(due) < maxDueLines) {
		due = append(due, p.script.Output[p.line])
		p.line++
		if p.line == len(p.script.Output) && p.script.OutputEvery > 0 {
			p.line, p.round = 0, p.round+p.script.OutputEvery
		}
	}
	return due
}

func (p *process) print(due []OutputLine) {
	if len(due) == 0 {
		return
	}
	for _, l := range due {
		printLine(p.io, l)
	}
	if p.io.Log != nil {
		p.io.Log.Release()
	}
}

func printLine(sio embedded.IO, l OutputLine) {
	w := sio.Stdout
	if l.Stderr && !sio.TTY {
		w = sio.Stderr
	}
	if w == nil {
		return
	}
	end := "\n"
	switch {
	case l.Open:
		end = ""
	case sio.TTY: // the line discipline of a terminal
		end = "\r\n"
	}
	_, _ = io.WriteString(w, l.Text+end)
}

// finish reports the exit. It is called once, without mu.
func (p *process) finish(e embedded.Exit) {
	p.timer.Stop()
	p.s.runs(p, false)
	if p.stopReading != nil {
		p.stopReading()
	}
	p.mu.Lock()
	for c := range p.closers {
		_ = c.Close()
	}
	p.mu.Unlock()
	if p.script.Message != "" {
		for _, m := range p.c.Config.GetMounts() {
			if p.c.IsTerminationMessage(m) {
				_ = os.WriteFile(m.GetHostPath(), []byte(p.script.Message), 0o600) // best effort, as in any container
			}
		}
	}
	p.exited(e)
}

// Signal implements embedded.Process.
func (p *process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return nil
	}
	switch {
	case sig == syscall.SIGKILL:
		p.ended = true
		p.mu.Unlock()
		p.finish(embedded.Exit{Code: 137})
		return nil
	case p.script.IgnoreTERM || p.stopAt > 0 || harmless(sig):
		p.mu.Unlock()
		return nil
	}
	p.stopCode = 128 + int32(sig)
	if p.script.TermExitCode != nil {
		p.stopCode = *p.script.TermExitCode
	}
	if p.script.StopAfter == 0 {
		p.ended = true
		code := p.stopCode
		p.mu.Unlock()
		p.finish(embedded.Exit{Code: code})
		return nil
	}
	p.stopAt = time.Since(p.start) + p.script.StopAfter
	p.arm()
	p.mu.Unlock()
	return nil
}

// harmless reports whether a process without a handler ignores sig.
func harmless(sig syscall.Signal) bool {
	return sig == 0 || sig == signals.SIGCHLD || sig == signals.SIGCONT || sig == signals.SIGURG || sig == signals.SIGWINCH
}

// Exec implements embedded.Process.
func (p *process) Exec(ctx context.Context, e embedded.Exec) (int32, error) {
	p.mu.Lock()
	n := p.execs
	p.execs++
	p.mu.Unlock()
	if p.script.ExecExitCodes != nil || p.script.ExecOutput != "" || p.script.ExecDelay > 0 {
		return p.command(ctx, func(ctx context.Context) (int32, error) {
			if err := sleep.For(ctx, p.script.ExecDelay); err != nil {
				return 0, err
			}
			if p.script.ExecOutput != "" {
				printLine(e.IO, OutputLine{Text: p.script.ExecOutput})
			}
			return byAttempt(p.script.ExecExitCodes, n), nil
		})
	}
	if sig, ok := killsInit(e.Cmd); ok {
		return 0, p.Signal(sig)
	}
	if read := interpreter(e.Cmd); read != nil && e.Stdin != nil {
		return p.command(ctx, func(ctx context.Context) (int32, error) { return interpret(ctx, read, e.IO) })
	}
	script, ok := compile(e.Cmd)
	if !ok {
		if len(e.Cmd) > 0 {
			printLine(e.IO, OutputLine{Stderr: true, Text: e.Cmd[0] + ": command not simulated"})
		}
		return 127, nil
	}
	return p.command(ctx, func(ctx context.Context) (int32, error) { return play(ctx, script, e.IO) })
}

// killsInit parses kill [-SIGNAL] 1.
func killsInit(argv []string) (syscall.Signal, bool) {
	if len(argv) == 3 && argv[0] == "sh" && argv[1] == "-c" {
		if steps, ok := split(argv[2]); ok && len(steps) == 1 {
			argv = steps[0].argv
		}
	}
	if len(argv) < 2 || argv[0] != "kill" || argv[len(argv)-1] != "1" {
		return 0, false
	}
	if len(argv) == 2 {
		return syscall.SIGTERM, true
	}
	name := argv[1]
	if name == "-9" {
		return syscall.SIGKILL, true
	}
	return signals.Number("SIG" + name[min(1, len(name)):])
}

// Usage implements embedded.Process.
func (p *process) Usage() embedded.Usage {
	run := time.Since(p.start)
	memory := at(p.script.Memory, run)
	return embedded.Usage{
		CPU:        processorTime(p.script.CPU, run),
		NanoCores:  at(curve(p.script.CPU), run) * 1e6,
		WorkingSet: memory, RSS: memory, Disk: at(p.script.Disk, run), Processes: 1,
	}
}

// Update implements embedded.ResourceUpdater: a lower memory limit may kill the container.
func (p *process) Update(r *v1.LinuxContainerResources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := r.GetMemoryLimitInBytes(); l > 0 && !p.ended {
		p.limit = uint64(l)
		p.arm()
	}
	return nil
}
