package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// row is a case with its result on each runtime, nil where it did not run.
type row struct {
	Area, Name, Consequence string
	Results                 []*runtimetest.CaseResult
}

// Differs reports whether the runtimes have not all passed the case.
func (r row) Differs() bool {
	for _, result := range r.Results {
		if result == nil || result.Result != runtimetest.Passed {
			return true
		}
	}
	return false
}

// column is a runtime.
type column struct {
	Name, Version string
	Report        runtimetest.Report
}

// columns names the runtimes of reports.
func columns(reports []runtimetest.Report) []column {
	var all []column
	for _, r := range reports {
		all = append(all, column{Name: printable(r.Runtime), Version: printable(r.Version), Report: r})
	}
	return all
}

// printable replaces what would control a terminal, or end a line: the texts are the runtime's.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// rows aligns the cases of reports, in the order of the suite; those of an earlier suite
// come last.
func rows(reports []runtimetest.Report) []row {
	position := map[string]int{}
	for i, name := range runtimetest.Cases() {
		position[name] = i
	}
	found := map[string]*row{}
	names := runtimetest.Cases()
	for i, report := range reports {
		for _, c := range report.Cases {
			if found[c.Name] == nil {
				found[c.Name] = &row{Area: c.Area, Name: c.Name, Consequence: c.Consequence, Results: make([]*runtimetest.CaseResult, len(reports))}
				if _, ok := position[c.Name]; !ok {
					names = append(names, c.Name)
				}
			}
			found[c.Name].Results[i] = &c
		}
	}
	var all []row
	for _, name := range names {
		if r := found[name]; r != nil {
			all = append(all, *r)
		}
	}
	return all
}

// label is a result in one word.
func label(r *runtimetest.CaseResult) string {
	if r == nil {
		return "not run"
	}
	return string(r.Result)
}

// count is the counts of a report in an area, or in all for "".
func count(r runtimetest.Report, area string) string {
	n, failed, deviations, skipped := 0, 0, 0, 0
	for _, c := range r.Cases {
		if area != "" && c.Area != area {
			continue
		}
		switch c.Result {
		case runtimetest.Passed:
			n++
		case runtimetest.Failed:
			failed++
		case runtimetest.Deviation:
			deviations++
		case runtimetest.Skipped:
			skipped++
		}
	}
	parts := []string{fmt.Sprintf("%d of %d", n, n+failed+deviations+skipped)}
	for _, part := range []struct {
		n    int
		word string
	}{{failed, "failed"}, {deviations, "deviations"}, {skipped, "skipped"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.word))
		}
		if part.n == 1 {
			parts[len(parts)-1] = strings.TrimSuffix(parts[len(parts)-1], "s")
		}
	}
	return strings.Join(parts, ", ")
}

// areasOf returns the areas of rows, in their order.
func areasOf(all []row) []string {
	var names []string
	for _, r := range all {
		if !slices.Contains(names, r.Area) { // a case of an earlier suite comes last
			names = append(names, r.Area)
		}
	}
	return names
}

// writeComparison writes the results of runtimes side by side: the counts by area, and each
// case that not all of them pass.
func writeComparison(w io.Writer, reports []runtimetest.Report) error {
	all, heads := rows(reports), columns(reports)
	table := [][]string{{""}}
	for _, c := range heads {
		table[0] = append(table[0], c.Name+" "+c.Version)
	}
	line := func(first string, cell func(int) string) {
		cells := []string{first}
		for i := range reports {
			cells = append(cells, cell(i))
		}
		table = append(table, cells)
	}
	line("all cases passed", func(i int) string { return count(reports[i], "") })
	for _, area := range areasOf(all) {
		line(area, func(i int) string { return count(reports[i], area) })
		for _, r := range all {
			if r.Area == area && r.Differs() {
				line("  "+r.Name, func(i int) string { return label(r.Results[i]) })
			}
		}
	}
	_, err := io.WriteString(w, align(table))
	return err
}

// align pads the cells of a table.
func align(table [][]string) string {
	widths := make([]int, len(table[0]))
	for _, cells := range table {
		for i, cell := range cells {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, cells := range table {
		var line strings.Builder
		for i, cell := range cells {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// writeMarkdown writes the same as Markdown, with the reasons.
func writeMarkdown(w io.Writer, reports []runtimetest.Report) error {
	all, heads := rows(reports), columns(reports)
	var b strings.Builder
	cells := func(first string, cell func(int) string) {
		b.WriteString("| " + escape(first))
		for i := range reports {
			b.WriteString(" | " + escape(cell(i)))
		}
		b.WriteString(" |\n")
	}
	cells("", func(i int) string { return heads[i].Name + " " + heads[i].Version })
	b.WriteString("|" + strings.Repeat("---|", len(reports)+1) + "\n")
	for _, area := range areasOf(all) {
		cells(area, func(i int) string { return count(reports[i], area) })
	}
	cells("all", func(i int) string { return count(reports[i], "") })
	cells("seconds", func(i int) string { return fmt.Sprintf("%.0f", reports[i].Seconds) })
	b.WriteString("\nCases that not all of them pass:\n\n")
	cells("case", func(i int) string { return heads[i].Name + " " + heads[i].Version })
	b.WriteString("|" + strings.Repeat("---|", len(reports)+1) + "\n")
	for _, r := range all {
		if !r.Differs() {
			continue
		}
		cells(r.Name, func(i int) string {
			text := label(r.Results[i])
			if c := r.Results[i]; c != nil && c.Reason != "" {
				text += ": " + c.Reason
			}
			return text
		})
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// escape keeps a text in its cell.
func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}
