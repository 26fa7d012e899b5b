package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun_ReportsWhatSurvives(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"./testdata/sample"}, &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	assert.Contains(t, last, "survive")
	report := out.String()
	for _, want := range []string{
		"sample.go:11:5\t< becomes <=\tn < 0",                  // no test has 0
		"sample.go:14:5\t> becomes >=\tn > limit",              // the same number comes out
		"sample.go:14:18\tdrop operand of &&\tlimit != 0",      // no test has limit 0
		"sample.go:21:37\tnegate (no test reaches it)\tn == 1", // and none calls it
	} {
		assert.Contains(t, report, want)
	}
	assert.NotContains(t, report, "delete statement\tn = limit")
	assert.NotContains(t, report, "sample.go:11:5\tnegate")
	assert.NotContains(t, report, "ErrNegative", "a lost error is noticed")
}

func TestRun_FailsBelowTheLeastScore(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-least", "90", "./testdata/sample"}, &out), errTooManySurvive)
}

func TestParseEquivalent(t *testing.T) {
	known, err := parseEquivalent([]byte("# a comment\n\na/b.go | negate | x < y | both are zero here\n"))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a/b.go | negate | x < y": "both are zero here"}, known)
	_, err = parseEquivalent([]byte("a/b.go | negate | no reason\n"))
	assert.ErrorContains(t, err, "equivalent.txt:1")
	_, err = parseEquivalent(equivalentList)
	assert.NoError(t, err)
}

func TestResultPrint_LeavesEquivalentMutantsOut(t *testing.T) {
	r := result{pkg: "a", mutants: []mutant{
		{where: "b.go:1:1", what: "negate", text: "x", killed: true},
		{where: "b.go:2:1", what: "negate", text: "y"},
		{where: "b.go:3:1", what: "negate", text: "z"},
		{where: "b.go:4:1", what: "negate", text: "w", killed: true},
	}}
	var out bytes.Buffer
	score := r.print(&out, map[string]string{"a/b.go | negate | y": "why", "a/b.go | negate | w": "wrong"})
	assert.InDelta(t, 66.7, score, 0.1)
	assert.Contains(t, out.String(), "b.go:2:1\tequivalent: why")
	assert.Contains(t, out.String(), "a/b.go | negate | w\tis killed, though listed as equivalent")
}
