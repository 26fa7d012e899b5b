package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// results are the specs that ran, by name, and whether they passed.
type results map[string]bool

// readResults reads the JUnit report of Ginkgo. A failed preparation of the suite counts as a spec.
func readResults(r io.Reader) (results, error) {
	var report struct {
		Cases []struct {
			Name   string `xml:"name,attr"`
			Status string `xml:"status,attr"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.NewDecoder(r).Decode(&report); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	all, labels := results{}, regexp.MustCompile(` \[sig-[^\]]*\]$`) // Ginkgo adds the labels to the name
	for _, c := range report.Cases {
		name, isSpec := strings.CutPrefix(c.Name, "[It] ")
		name = labels.ReplaceAllString(name, "")
		passed := c.Status == "passed"
		switch {
		case c.Status == "skipped" || c.Status == "pending":
		case isSpec || !passed: // without its preparation the suite runs no spec
			all[name] = passed
		}
	}
	return all, nil
}

// table has a line for each spec, those that failed at the end, and the counts.
func (r results) table() string {
	var passed, failed strings.Builder
	count := 0
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name] {
			fmt.Fprintln(&passed, "PASS", name)
			count++
		} else {
			fmt.Fprintln(&failed, "FAIL", name)
		}
	}
	return fmt.Sprintf("%s%s%d of %d specs passed\n", passed.String(), failed.String(), count, len(r))
}

// unexpected returns what contradicts a list of the specs that fail: a line each, with a
// reason after a tab. Lines that begin with # are comments.
func (r results) unexpected(list string) (contradictions []string) {
	if len(r) == 0 {
		return []string{"no spec has run"}
	}
	known := map[string]bool{}
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		known[name] = true
		if r[name] {
			contradictions = append(contradictions, "passes: "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if !r[name] && !known[name] {
			contradictions = append(contradictions, "fails: "+name)
		}
	}
	return contradictions
}

func TestReadResults(t *testing.T) {
	r, err := readResults(strings.NewReader(`<?xml version="1.0"?>
<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
<testcase name="[It] pods start" status="passed"></testcase>
<testcase name="[It] [sig-node] pods are [Conformance] [sig-node, Conformance]" status="passed"></testcase>
<testcase name="[It] pods stop" status="failed"><failure>timeout</failure></testcase>
<testcase name="[It] pods panic" status="panicked"></testcase>
<testcase name="[It] pods fly" status="skipped"></testcase>
<testcase name="[It] pods think" status="pending"></testcase>
</testsuite></testsuites>`))
	require.NoError(t, err)
	assert.Equal(t, results{"[sig-node] pods are [Conformance]": true, "pods start": true, "pods stop": false, "pods panic": false}, r)
	assert.Equal(t, "PASS [sig-node] pods are [Conformance]\nPASS pods start\nFAIL pods panic\nFAIL pods stop\n2 of 4 specs passed\n", r.table())
	r, err = readResults(strings.NewReader(`<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="failed"><failure>no node is ready</failure></testcase>
<testcase name="[It] pods start" status="skipped"></testcase>
</testsuite></testsuites>`))
	require.NoError(t, err)
	assert.Equal(t, results{"[SynchronizedBeforeSuite]": false}, r)
	_, err = readResults(strings.NewReader("no report"))
	require.ErrorContains(t, err, "read report")
}

func TestResults_Unexpected(t *testing.T) {
	r := results{"a": true, "b": false, "c": false}
	assert.Equal(t, []string{"fails: b", "fails: c"}, r.unexpected("# comment\n\n"))
	assert.Equal(t, []string{"passes: a", "fails: c"}, r.unexpected("a\treason\nb\treason\nother\treason\n"))
	assert.Empty(t, r.unexpected("b\tno kernel module\nc\tno images"))
	assert.Equal(t, []string{"no spec has run"}, results{}.unexpected("b\tno kernel module\n"))
}
