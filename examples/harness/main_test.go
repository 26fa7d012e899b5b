package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/internal/browsertest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// serveRuntime serves a simulated runtime with a name, and returns the path of its socket.
func serveRuntime(t *testing.T, name string) string {
	t.Helper()
	rt, err := embedded.New(embedded.Config{Name: name, Executor: simulated.New(simulated.Config{})})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	dir, err := os.MkdirTemp("", "harness-") //nolint:usetesting // a socket path must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "cri.sock")
	lis, err := net.Listen("unix", socket)
	require.NoError(t, err)
	g := grpc.NewServer()
	rt.Register(g)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	return socket
}

// command runs the command and returns its exit code and outputs.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, func(string) string { return "" }, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRun_ReportsAsTextJSONAndJUnit(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	code, stdout, stderr := command(t, "-endpoint", "unix://"+serveRuntime(t, "first"), "-without", "processes", "-run", "^the runtime|memory limit",
		"-json", file("r.json"), "-junit", file("r.xml"), "-markdown", file("r.md"))
	assert.Equal(t, exitPassed, code, stderr)
	assert.Regexp(t, `\d/\d +passed +\d+\.\ds  invalid calls: the runtime reports that it is ready`, stderr)
	assert.Regexp(t, `all +\d+ +0 +0 +\d+\n`, stdout)

	code, stdout, stderr = command(t, file("r.json"))
	assert.Equal(t, exitPassed, code, stderr)
	assert.Contains(t, stdout, "first v0.37.0")
	text, err := os.ReadFile(file("r.xml"))
	require.NoError(t, err)
	var suites struct {
		Tests int `xml:"tests,attr"`
	}
	require.NoError(t, xml.Unmarshal(text, &suites))
	assert.Positive(t, suites.Tests)
	text, err = os.ReadFile(file("r.md"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "| first v0.37.0 |")

	_, stdout, _ = command(t, file("r.json"), "-json", "-")
	assert.Empty(t, stdout, "a flag behind a report is a file that does not exist")
	code, stdout, _ = command(t, "-json", "-", file("r.json"))
	assert.Equal(t, exitPassed, code)
	_, err = runtimetest.ReadReport(strings.NewReader(stdout))
	require.NoError(t, err, "with the text, it would be no JSON")
}

func TestRun_ExitCodeSaysWhatHappened(t *testing.T) {
	socket := serveRuntime(t, "any")
	known := filepath.Join(t.TempDir(), "known")
	require.NoError(t, os.WriteFile(known, []byte("the runtime reports that it is ready: it is not\n"), 0o600))
	invalid := filepath.Join(t.TempDir(), "invalid.json")
	require.NoError(t, os.WriteFile(invalid, []byte("{}"), 0o600))
	tests := map[string]struct {
		args   []string
		want   int
		stderr string
	}{
		"all cases passed":               {[]string{"-endpoint", socket, "-run", "is ready$"}, exitPassed, ""},
		"nothing is printed if so asked": {[]string{"-endpoint", socket, "-run", "is ready$", "-quiet"}, exitPassed, ""},
		"a case failed":                  {[]string{"-endpoint", socket, "-run", "is ready$", "-known-failures", known}, exitFailed, "remove it from the list"},
		"a flag is invalid":              {[]string{"-endpoint", socket, "-without", "all"}, exitUsage, "invalid value"},
		"the flags are printed":          {[]string{"-help"}, exitPassed, "-known-failures"},
		"the names are printed":          {[]string{"-list"}, exitPassed, ""},
		"no runtime is there":            {[]string{"-endpoint", "/no/such.sock"}, exitNotRun, "/no/such.sock: run the suite"},
		"no report is there":             {[]string{"/no/such.json"}, exitNotRun, "no such file"},
		"a file is no report":            {[]string{invalid}, exitNotRun, "no cases"},
		"a file cannot be written":       {[]string{"-endpoint", socket, "-run", "is ready$", "-json", "/no/such/dir/f"}, exitNotRun, "no such file"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := command(t, tc.args...)
			assert.Equal(t, tc.want, code, stderr)
			assert.Contains(t, stderr, tc.stderr)
			if strings.HasPrefix(name, "nothing") {
				assert.Empty(t, stderr)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Equal(t, exitNotRun, run(ctx, []string{"-endpoint", socket}, func(string) string { return "" }, &bytes.Buffer{}, &bytes.Buffer{}))
}

// A run takes minutes: what one runtime has passed is not lost because another one is away, or because
// the command is interrupted.
func TestRun_ReportsTheEndpointsOnWhichTheSuiteEnded(t *testing.T) {
	first, last := serveRuntime(t, "first"), serveRuntime(t, "last")
	path := filepath.Join(t.TempDir(), "r.html")
	code, stdout, stderr := command(t, "-run", "is ready$", "-html", path, "-endpoint", first, "-endpoint", "/no/such.sock", "-endpoint", last)
	assert.Equal(t, exitNotRun, code)
	assert.Contains(t, stderr, "harness: /no/such.sock: run the suite")
	assert.Regexp(t, `^ +first v\S+ +last v\S+\n`, stdout)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(text), "first")

	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	interrupt := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), last) {
			cancel()
		}
		return errs.Write(p)
	})
	args := []string{"-run", "is ready$", "-endpoint", first, "-endpoint", last, "-endpoint", "/never/asked.sock"}
	assert.Equal(t, exitNotRun, run(ctx, args, func(string) string { return "" }, &out, interrupt))
	assert.Contains(t, out.String(), "first v0.37.0: 2 cases")
	assert.NotContains(t, errs.String(), "/never/asked.sock")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// made are the reports of two made-up runtimes.
func made() []runtimetest.Report {
	names := runtimetest.Cases()
	passed := func(name string) runtimetest.CaseResult {
		return runtimetest.CaseResult{Area: "pods", Name: name, Result: runtimetest.Passed, Consequence: "pods would stay"}
	}
	failed := passed(names[1])
	failed.Result, failed.Failures = runtimetest.Failed, []string{"state is <b>bold</b>"}
	deviation := passed(names[1])
	deviation.Result, deviation.Failures, deviation.Reason = runtimetest.Deviation, []string{"one | two"}, "it is | old"
	old := passed("a case that was removed")
	old.Area = "past"
	return []runtimetest.Report{
		{Runtime: "<one>", Version: "1", Seconds: 2, Cases: []runtimetest.CaseResult{failed, passed(names[0])}},
		{Runtime: "two", Version: "2", Seconds: 61, Cases: []runtimetest.CaseResult{passed(names[0]), deviation, old}},
	}
}

func TestWriteComparison_AlignsRuntimesSideBySide(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeComparison(&b, made()))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	second := strings.Index(lines[0], "two 2")
	require.Positive(t, second)
	want := []struct{ first, one, two string }{
		{"", "<one> 1", "two 2"},
		{"all cases passed", "1 of 2, 1 failed", "2 of 3, 1 deviation"},
		{"pods", "1 of 2, 1 failed", "1 of 2, 1 deviation"},
		{"  " + runtimetest.Cases()[1], "failed", "deviation"},
		{"past", "0 of 0", "1 of 1"},
		{"  a case that was removed", "not run", "passed"},
	}
	require.Len(t, lines, len(want))
	for i, w := range want {
		assert.True(t, strings.HasPrefix(lines[i], w.first), lines[i])
		assert.Contains(t, lines[i][:second], w.one)
		assert.Equal(t, w.two, lines[i][second:])
	}
}

// A case that a later suite does not have any more comes behind all others, in its area.
func TestWriteComparison_HasEachAreaOnce(t *testing.T) {
	reports := made()
	reports[1].Cases[2].Area = "pods"
	reports[0].Cases = append(reports[0].Cases, runtimetest.CaseResult{
		Area: "restarts", Name: runtimetest.Cases()[len(runtimetest.Cases())-1], Result: runtimetest.Failed,
	})
	reports[0].Runtime = "one\x1b[2J\n"
	var b bytes.Buffer
	require.NoError(t, writeComparison(&b, reports))
	var first []string
	for line := range strings.Lines(b.String()) {
		if cells := strings.Split(strings.TrimSuffix(line, "\n"), "  "); cells[0] != "" {
			first = append(first, cells[0])
		} else if len(cells) > 1 {
			first = append(first, cells[1])
		}
	}
	assert.Equal(t, []string{"all cases passed", "pods", runtimetest.Cases()[1], "a case that was removed", "restarts", reports[0].Cases[2].Name}, first[1:])
	assert.NotContains(t, b.String(), "\x1b", "a runtime does not control the terminal")

	b.Reset()
	require.NoError(t, writeMarkdown(&b, reports))
	assert.Equal(t, 1, strings.Count(b.String(), "| pods |"))
	b.Reset()
	require.NoError(t, writeHTML(&b, reports))
	assert.Equal(t, 2, strings.Count(b.String(), "<tbody"))
}

func TestWriteMarkdown_HasCountsAndReasons(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeMarkdown(&b, made()))
	text := b.String()
	assert.Contains(t, text, "|  | &lt;one> 1 | two 2 |\n|---|---|---|\n")
	assert.Contains(t, text, "| pods | 1 of 2, 1 failed | 1 of 2, 1 deviation |\n")
	assert.Contains(t, text, "| seconds | 2 | 61 |\n")
	assert.Contains(t, text, `| failed | deviation: it is \| old |`)
	assert.NotContains(t, text, runtimetest.Cases()[0], "all pass it")
}

// The page shows what it should to people, in a browser.
func TestWriteHTML_IsShownByABrowser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	var b bytes.Buffer
	require.NoError(t, writeHTML(&b, made()))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	assert.NotContains(t, b.String(), "<b>bold", "a runtime does not write the page")
	assert.NotContains(t, b.String(), "<script")

	p := browsertest.Open(t, "file://"+path, browsertest.Options{})
	p.Wait(`document.querySelectorAll("tbody").length === 2`)
	shows := func(expression string) (yes bool) {
		p.Eval(expression, &yes)
		return yes
	}
	for what, expression := range map[string]string{
		"a column for each runtime":      `document.querySelectorAll("thead th").length === 3`,
		"a row for each case":            `document.querySelectorAll("tr.same, tr.differs").length === 3`,
		"the failure as text":            `document.querySelector("td.failed pre").textContent.includes("<b>bold</b>")`,
		"failures folded away":           `!document.querySelector("td.failed pre").checkVisibility()`,
		"the reason of the deviation":    `document.querySelector("td.deviation .why").textContent === "it is | old"`,
		"cases that all pass":            `document.querySelector("tr.same").checkVisibility()`,
		"no more than the screen's size": `document.documentElement.scrollWidth <= window.innerWidth`,
	} {
		assert.True(t, shows(expression), what)
	}
	p.Wait(`document.getElementById("differences").click() || document.getElementById("differences").checked`)
	assert.False(t, shows(`document.querySelector("tr.same").checkVisibility()`))
	assert.True(t, shows(`document.querySelector("tr.differs").checkVisibility()`))
	assert.Empty(t, p.Problems())
	assert.LessOrEqual(t, len(p.Requests()), 1, "it needs no other file")
}
