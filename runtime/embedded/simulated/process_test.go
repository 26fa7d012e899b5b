package simulated

import (
	"bytes"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/internal/signals"
)

func TestProcess_PlannedExit(t *testing.T) {
	const none = 0
	growing := []UsagePoint{{0, 0}, {10 * time.Second, 100}}
	oomKilled := embedded.Exit{Code: 137, Reason: embedded.ReasonOOMKilled}
	for name, tc := range map[string]struct {
		script Script
		limit  uint64
		stopAt time.Duration
		end    time.Duration
		exit   embedded.Exit
	}{
		"without end":                         {Script{}, none, none, forever, embedded.Exit{}},
		"at its time":                         {Script{RunFor: 3, ExitCodes: []int32{4}}, none, none, 3, embedded.Exit{Code: 4}},
		"at its stop":                         {Script{RunFor: 3}, none, 2, 2, embedded.Exit{Code: 9}},
		"at its time when stopped then":       {Script{RunFor: 3, ExitCodes: []int32{4}}, none, 3, 3, embedded.Exit{Code: 4}},
		"at its time when stopped later":      {Script{RunFor: 3, ExitCodes: []int32{4}}, none, 4, 3, embedded.Exit{Code: 4}},
		"at its limit":                        {Script{Memory: growing}, 50, none, 5 * time.Second, oomKilled},
		"not without a limit":                 {Script{Memory: growing}, none, none, forever, embedded.Exit{}},
		"at its limit before the kernel":      {Script{Memory: growing, OOMAfter: 6 * time.Second}, 50, none, 5 * time.Second, oomKilled},
		"by the kernel before its limit":      {Script{Memory: growing, OOMAfter: 4 * time.Second}, 50, none, 4 * time.Second, oomKilled},
		"at its time as the kernel kills it":  {Script{RunFor: 5, OOMAfter: 5}, none, none, 5, embedded.Exit{}},
		"at its time before the kernel":       {Script{RunFor: 5, OOMAfter: 6}, none, none, 5, embedded.Exit{}},
		"at once when it begins at its limit": {Script{Memory: []UsagePoint{{0, 100}}}, 50, none, 1, oomKilled},
	} {
		t.Run(name, func(t *testing.T) {
			p := &process{script: tc.script, limit: tc.limit, stopAt: tc.stopAt, stopCode: 9, c: &embedded.Container{Config: &v1.ContainerConfig{}}}
			end, exit := p.plannedExit()
			assert.Equal(t, tc.end, end)
			assert.Equal(t, tc.exit, exit)
		})
	}
	p := &process{script: Script{Output: []OutputLine{{At: 1}}}, round: 10}
	assert.Equal(t, time.Duration(11), p.nextLine())
}

// Output that is repeated faster than it is printed takes no more memory for that.
func TestProcess_TakesLinesThatAreLateInParts(t *testing.T) {
	p := &process{script: Script{Output: []OutputLine{{Text: "a"}, {Text: "b"}}, OutputEvery: time.Microsecond}}
	for round := range 3 {
		assert.Len(t, p.takeLines(time.Second), maxDueLines)
		assert.Equal(t, time.Duration(round+1)*maxDueLines/2*time.Microsecond, p.nextLine())
	}
	p = &process{script: Script{Output: make([]OutputLine, 3*maxDueLines)}}
	assert.Len(t, p.takeLines(time.Second), 3*maxDueLines, "what is printed once is not left")
}

func TestProcess_PrintsToItsStreams(t *testing.T) {
	for name, tc := range map[string]struct {
		line        OutputLine
		tty         bool
		out, errors string
	}{
		"output":                    {OutputLine{Text: "a"}, false, "a\n", ""},
		"an error":                  {OutputLine{Text: "a", Stderr: true}, false, "", "a\n"},
		"an open line":              {OutputLine{Text: "a", Open: true}, false, "a", ""},
		"an error on a terminal":    {OutputLine{Text: "a", Stderr: true}, true, "a\r\n", ""},
		"an open line's terminal":   {OutputLine{Text: "a", Open: true}, true, "a", ""},
		"a line ends on a terminal": {OutputLine{Text: "a"}, true, "a\r\n", ""},
	} {
		var out, errs bytes.Buffer
		printLine(embedded.IO{Stdout: &out, Stderr: &errs, TTY: tc.tty}, tc.line)
		assert.Equal(t, tc.out, out.String(), name)
		assert.Equal(t, tc.errors, errs.String(), name)
	}
	printLine(embedded.IO{}, OutputLine{Text: "to no stream"})
}

func TestProcess_Signals(t *testing.T) {
	for _, sig := range []syscall.Signal{0, signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH} {
		assert.True(t, harmless(sig), sig)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		assert.False(t, harmless(sig), sig)
	}
	for _, tc := range []struct {
		argv []string
		want syscall.Signal // 0 is none
	}{
		{[]string{"kill", "1"}, syscall.SIGTERM},
		{[]string{"kill", "-9", "1"}, syscall.SIGKILL},
		{[]string{"kill", "-INT", "1"}, syscall.SIGINT},
		{[]string{"sh", "-c", "kill 1"}, syscall.SIGTERM},
		{[]string{"kill", "2"}, 0},
		{[]string{"skill", "1"}, 0},
		{[]string{"kill"}, 0},
		{nil, 0},
		{[]string{"sh", "-x", "kill 1"}, 0},
		{[]string{"ash", "-c", "kill 1"}, 0},
		{[]string{"sh", "-c", "kill 1; true"}, 0},
		{[]string{"sh", "-c", "kill 1 | cat"}, 0},
		{[]string{"kill", "", "1"}, 0},
	} {
		got, ok := killsInit(tc.argv)
		assert.Equal(t, tc.want != 0, ok, "%q", tc.argv)
		if ok {
			assert.Equal(t, tc.want, got, "%q", tc.argv)
		}
	}
}

// A container takes its time from the first stop signal on, whatever follows it.
func TestProcess_StopsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/stop-after: 4s", "sim.sublet.dev/term-exit-code: 5")), nil)
		time.Sleep(time.Second)
		stop := func() {
			_, err := g.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: id, Timeout: 60})
			assert.NoError(t, err)
		}
		start := time.Now()
		go stop()
		time.Sleep(time.Second)
		stop()
		assert.Equal(t, 4*time.Second, time.Since(start))
		assert.Equal(t, int32(5), g.Inspect(t, id).GetExitCode())
		synctest.Wait()
	})
}

func TestProcess_CommandsFollowTheScript(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation string
		cmd        []string
		code       int32
		out        string // and errors
		took       time.Duration
	}{
		"a code":       {"sim.sublet.dev/exec-exit-code: 3", []string{"anything"}, 3, "", 0},
		"a delay":      {"sim.sublet.dev/exec-delay: 2s", []string{"anything"}, 0, "", 2 * time.Second},
		"an output":    {"sim.sublet.dev/exec-output: text", []string{"anything"}, 0, "text\n", 0},
		"nothing":      {"sim.sublet.dev/cpu: 1", []string{"anything"}, 127, "anything: command not simulated\n", 0},
		"a sleep":      {"sim.sublet.dev/cpu: 1", []string{"sh", "-c", "sleep 3; exit 4"}, 4, "", 3 * time.Second},
		"to signal it": {"sim.sublet.dev/cpu: 1", []string{"kill", "-9", "1"}, 0, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", tc.annotation)), nil)
				start := time.Now()
				r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: tc.cmd})
				require.NoError(t, err)
				assert.Equal(t, tc.code, r.GetExitCode())
				assert.Equal(t, tc.out, string(r.GetStdout())+string(r.GetStderr()))
				assert.Equal(t, tc.took, time.Since(start))
				want := v1.ContainerState_CONTAINER_RUNNING
				if tc.cmd[0] == "kill" {
					want = v1.ContainerState_CONTAINER_EXITED
				}
				synctest.Wait()
				assert.Equal(t, want, g.Inspect(t, id).GetState())
			})
		})
	}
}
