package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// progress prints a line for each case, and at once what a failure says.
type progress struct {
	to          io.Writer
	done, total int
}

func (p *progress) show(r runtimetest.CaseResult) {
	p.done++
	width := len(fmt.Sprint(p.total))
	fmt.Fprintf(p.to, "%*d/%d  %-9s  %6.1fs  %s: %s\n", width, p.done, p.total, r.Result, r.Seconds, r.Area, r.Name)
	if r.Result == runtimetest.Failed {
		fmt.Fprintln(p.to, "    "+strings.ReplaceAll(r.String(), "\n", "\n    "))
	}
}

func (p *progress) showRunning(caseName string, elapsed time.Duration) {
	fmt.Fprintf(p.to, "still running after %s: %s\n", elapsed, caseName)
}
