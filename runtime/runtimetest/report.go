package runtimetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Result is the outcome of a case.
type Result string

// The outcomes of a case.
const (
	Passed    Result = "passed"
	Failed    Result = "failed"
	Deviation Result = "deviation" // fails, and is a known failure or a known flake
	Skipped   Result = "skipped"   // the runtime lacks what the case needs
)

// CaseResult is the result of one case.
type CaseResult struct {
	Area    string  `json:"area"` // what of the runtime the case is about: pods, network, ...
	Name    string  `json:"name"`
	Result  Result  `json:"result"`
	Seconds float64 `json:"seconds"`
	// Failures say what is wrong, in the words of the CRI: of a failure and of a deviation.
	Failures []string `json:"failures,omitempty"`
	// Consequence is what a kubelet suffers on a runtime that fails the case.
	Consequence string `json:"consequence"`
	// Reason is why the case was skipped, or the known reason of a deviation.
	Reason string `json:"reason,omitempty"`
}

// Report has the results of a run of the suite, in the order of Cases.
type Report struct {
	Runtime   string       `json:"runtime"` // the name in the response of Version
	Version   string       `json:"version"`
	StartTime time.Time    `json:"startTime"`
	Seconds   float64      `json:"seconds"`
	Cases     []CaseResult `json:"cases"`
}

// Count returns the number of cases with that result.
func (r Report) Count(result Result) int {
	n := 0
	for _, c := range r.Cases {
		if c.Result == result {
			n++
		}
	}
	return n
}

// Areas returns the areas of the cases, in their order.
func (r Report) Areas() []string {
	var names []string
	for _, c := range r.Cases {
		if !slices.Contains(names, c.Area) {
			names = append(names, c.Area)
		}
	}
	return names
}

// WriteJSON writes the report as a JSON object; docs/harness-report.schema.json describes it.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// ReadReport reads what WriteJSON has written.
func ReadReport(from io.Reader) (Report, error) {
	var r Report
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("read report: %w", err)
	}
	if len(r.Cases) == 0 {
		return Report{}, fmt.Errorf("read report: no cases")
	}
	return r, nil
}

// WriteText writes a summary for people: the counts by area, and what a kubelet would
// suffer from each failure.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %d cases in %s\n\n", r.Runtime, r.Version, len(r.Cases), time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond))
	fmt.Fprintf(&b, "%-32s %7s %7s %10s %8s\n", "", "passed", "failed", "deviations", "skipped")
	row := func(name string, of Report) {
		fmt.Fprintf(&b, "%-32s %7d %7d %10d %8d\n", name, of.Count(Passed), of.Count(Failed), of.Count(Deviation), of.Count(Skipped))
	}
	for _, name := range r.Areas() {
		row(name, Report{Cases: r.inArea(name)})
	}
	row("all", r)
	r.listSkipped(&b)
	r.list(&b, "Deviations, which are known", Deviation)
	r.list(&b, "Failures", Failed)
	_, err := io.WriteString(w, printable(b.String()))
	return err
}

// printable replaces what would control a terminal: texts come from the runtime.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// list writes the cases with that result under a heading, by area.
func (r Report) list(b *strings.Builder, heading string, result Result) {
	if r.Count(result) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", heading)
	for _, c := range r.Cases {
		if c.Result != result {
			continue
		}
		fmt.Fprintf(b, "\n  %s: %s\n", c.Area, c.Name)
		if c.Reason != "" {
			fmt.Fprintf(b, "    Reason: %s\n", c.Reason)
		}
		const most = 3 // of one case; JSON and JUnit have all
		for i, f := range c.Failures {
			if i == most {
				fmt.Fprintf(b, "    and %d more\n", len(c.Failures)-most)
				break
			}
			fmt.Fprintf(b, "    %s\n", strings.ReplaceAll(f, "\n", "\n    "))
		}
		fmt.Fprintf(b, "    Consequence for a kubelet: %s\n", c.Consequence)
	}
}

// listSkipped writes why cases were skipped.
func (r Report) listSkipped(b *strings.Builder) {
	count := map[string]int{}
	for _, c := range r.Cases {
		if c.Result == Skipped {
			count[c.Reason]++
		}
	}
	if len(count) > 0 {
		b.WriteString("\nSkipped\n\n")
	}
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(b, "  %d: %s\n", count[reason], reason)
	}
}

func (r Report) inArea(name string) []CaseResult {
	var found []CaseResult
	for _, c := range r.Cases {
		if c.Area == name {
			found = append(found, c)
		}
	}
	return found
}
