package scenario

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scenario is a file of testdata: a script of changes to an agent and its runtime, and
// the expected actions of the agent. The format is txtar: a comment that describes the
// scenario, then files after lines of the form "-- name --".
type scenario struct {
	comment string
	names   []string // of the files, in order
	files   map[string]string
	config  []step // of the file config, each without a time
	script  []step // of the file script
}

// step is one line of a script: a time since the start and a command.
type step struct {
	at   time.Duration
	line string
	args []string
}

func readScenario(t *testing.T, path string) *scenario {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	s := &scenario{files: map[string]string{}}
	var name string
	for line := range strings.Lines(string(data)) {
		if mark, ok := fileMark(line); ok {
			name = mark
			s.names = append(s.names, name)
			s.files[name] = ""
			continue
		}
		if name == "" {
			s.comment += line
		} else {
			s.files[name] += line
		}
	}
	s.config = steps(t, s.files["config"], false)
	s.script = steps(t, s.files["script"], true)
	require.NotEmpty(t, strings.TrimSpace(s.comment), "%s: a comment that describes the scenario is required", path)
	require.NotEmpty(t, s.script, "%s: no script", path)
	require.Equal(t, "end", s.script[len(s.script)-1].args[0], "%s: the script's last command must be end", path)
	return s
}

func fileMark(line string) (string, bool) {
	line, ok := strings.CutPrefix(strings.TrimSpace(line), "-- ")
	name, ok2 := strings.CutSuffix(line, " --")
	return name, ok && ok2
}

// steps parses lines. A time counts from the start or, with a +, from the previous line.
func steps(t *testing.T, text string, timed bool) []step {
	t.Helper()
	var all []step
	var now time.Duration
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if timed {
			at, relative := strings.CutPrefix(f[0], "+")
			d, err := time.ParseDuration(at)
			require.NoError(t, err, "in %q", line)
			if relative {
				d += now
			}
			require.GreaterOrEqual(t, d, now, "time goes back in %q", line)
			now, f = d, f[1:]
		}
		require.NotEmpty(t, f, "no command in %q", line)
		all = append(all, step{at: now, line: strings.Join(f, " "), args: f})
	}
	return all
}

// option returns the arguments of the config line with that first word.
func (s *scenario) option(name string) ([]string, bool) {
	for _, c := range s.config {
		if c.args[0] == name {
			return c.args[1:], true
		}
	}
	return nil, false
}

// write writes the scenario with another content of its last file, the observed one.
func (s *scenario) write(t *testing.T, path, last, content string) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(s.comment)
	for _, name := range s.names {
		if name != last {
			fmt.Fprintf(&b, "-- %s --\n%s", name, s.files[name])
		}
	}
	fmt.Fprintf(&b, "-- %s --\n%s", last, content)
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
}

// scenarioFiles returns the files of testdata that match a pattern. Their order gives the
// seeds of random faults their meaning.
func scenarioFiles(t *testing.T, pattern ...string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(append([]string{"testdata"}, pattern...)...))
	require.NoError(t, err)
	return files
}

// caseName returns the name of the test case of a file.
func caseName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".txtar") }
