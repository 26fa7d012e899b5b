package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

//go:embed page.html
var page string

// group is an area of the page.
type group struct {
	Name   string
	Counts []string
	Rows   []row
}

// writeHTML writes the results of runtimes side by side as a page without scripts that
// needs no other file.
func writeHTML(w io.Writer, reports []runtimetest.Report) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"label": label,
		"total": func(c column) string { return count(c.Report, "") },
		"duration": func(seconds float64) string {
			return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond).String()
		},
		"date": func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 UTC") },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("parse page: %w", err)
	}
	all := rows(reports)
	var groups []group
	for _, name := range areasOf(all) {
		g := group{Name: name}
		for _, r := range reports {
			g.Counts = append(g.Counts, count(r, name))
		}
		for _, r := range all {
			if r.Area == name {
				g.Rows = append(g.Rows, r)
			}
		}
		groups = append(groups, g)
	}
	return t.Execute(w, map[string]any{"Columns": columns(reports), "Groups": groups, "Width": len(reports) + 1})
}
