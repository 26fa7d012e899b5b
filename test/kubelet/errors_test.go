//go:build linux

package kubelet

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// callErrors are the errors of the runtime in a kubelet's log, without what differs from
// pod to pod, and how often each occurs.
type callErrors map[string]int

// runtimeErrors reads the errors of the runtime in a kubelet's log.
func runtimeErrors(log string) (callErrors, error) {
	file, err := os.Open(log) //nolint:gosec // a file of this test
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	found := callErrors{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	call := regexp.MustCompile(`^[EW]\d{4} .*?\] "([^"]*)".*?(rpc error: code = \w+ desc = (?:[^"\\]|\\.)*)`)
	ids := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,}|[a-z]+(-[a-z]+)+-\d+|\d+`)
	for lines.Scan() {
		if m := call.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]+": "+ids.ReplaceAllString(strings.TrimSuffix(m[2], `\`), "…")]++
		}
	}
	return found, lines.Err()
}

func (e callErrors) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nerrors of the runtime in the log of the kubelet: %d kinds\n", len(e))
	for _, text := range slices.Sorted(maps.Keys(e)) {
		fmt.Fprintf(&b, "%5d  %s\n", e[text], text)
	}
	return b.String()
}

// unexpected returns the errors that no line of a list begins: each line has a beginning
// and, after a tab, the reason. Lines that begin with # are comments.
func (e callErrors) unexpected(list string) (found []string) {
	var known []string
	for line := range strings.Lines(list) {
		text, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if text != "" && !strings.HasPrefix(text, "#") {
			known = append(known, text)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(e)) {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(text, k) }) {
			found = append(found, text)
		}
	}
	return found
}

func TestRuntimeErrors(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(log, []byte(`I1122 18:00:00.1 1 x.go:1] "Started" err="rpc error: code = Unknown desc = no"
E1122 18:00:00.1 1 x.go:1] "ExecSync failed" err="rpc error: code = NotFound desc = container 0123456789abcdef not found" id="1"
E1122 18:00:00.2 2 x.go:1] "ExecSync failed" err="rpc error: code = NotFound desc = container fedcba9876543210 not found" id="2"
W1122 18:00:00.2 2 x.go:1] "Other" err="no call"
`), 0o600))
	found, err := runtimeErrors(log)
	require.NoError(t, err)
	assert.Equal(t, callErrors{"ExecSync failed: rpc error: code = NotFound desc = container … not found": 2}, found)
	assert.Empty(t, found.unexpected("# comment\nExecSync failed: rpc error: code = NotFound\ta race\n"))
	assert.Len(t, found.unexpected("Other\tno reason"), 1)
	assert.Contains(t, found.table(), "2  ExecSync failed")
}

func TestLeaks_NamesWhatHasGrown(t *testing.T) {
	before := sample{goroutines: 20, containers: 0, heap: 1 << 20}
	assert.Empty(t, leaks(before, sample{goroutines: 30, heap: 2 << 20}))
	assert.Equal(t, []string{"containers: 0 before, 1 after", "goroutines: 20 before, 31 after"}, leaks(before, sample{goroutines: 31, containers: 1}))
}
