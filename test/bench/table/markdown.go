package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// writeTable writes one line for each goal. Of several variants it has the range of their medians, else that of the runs.
func writeTable(w *bytes.Buffer, goals []goal, all results) {
	fmt.Fprint(w, "| work | figure | target | measured | met |\n|---|---|---:|---:|---|\n")
	work := ""
	for _, g := range goals {
		shown := g.work
		if shown == work {
			shown = ""
		}
		work = g.work
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", shown, g.figure, g.targetText(), g.measured(all), g.met(all))
	}
}

func (g goal) targetText() string {
	switch g.limit {
	case atLeast:
		return "≥ " + short(g.target) + g.shown
	case atMost:
		return "≤ " + short(g.target) + g.shown
	default:
		return ""
	}
}

func (g goal) measured(all results) string {
	names := all.matching(g.benchmark, g.unit)
	switch len(names) {
	case 0:
		return "not measured"
	case 1:
		middle, _ := all.value(names[0], g.unit)
		low, high := bounds(all[names[0]][g.unit])
		if short(low) == short(high) {
			return short(middle) + g.shown
		}
		return fmt.Sprintf("%s%s (%s to %s)", short(middle), g.shown, short(low), short(high))
	default:
		low, high := bounds(g.medians(all, names))
		return short(low) + " to " + short(high) + g.shown
	}
}

func (g goal) met(all results) string {
	names := all.matching(g.benchmark, g.unit)
	if g.limit == noLimit || len(names) == 0 {
		return ""
	}
	met := 0
	for _, v := range g.medians(all, names) {
		if g.limit.isMet(v, g.target) {
			met++
		}
	}
	switch {
	case met == len(names):
		return "yes"
	case len(names) == 1 || met == 0:
		return "**no**"
	default:
		return fmt.Sprintf("**%d of %d**", met, len(names))
	}
}

func (g goal) medians(all results, names []string) (values []float64) {
	for _, name := range names {
		v, _ := all.value(name, g.unit)
		values = append(values, v)
	}
	return values
}

func bounds(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// writeVariants writes the medians of each variant, for goals that have several.
func writeVariants(w *bytes.Buffer, goals []goal, all results) {
	for i := 0; i < len(goals); {
		group := goals[i:]
		for n := range group {
			if group[n].benchmark != group[0].benchmark {
				group = group[:n]
				break
			}
		}
		i += len(group)
		names := all.matching(group[0].benchmark, group[0].unit)
		if len(names) < 2 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n\n|", group[0].work)
		for _, g := range group {
			fmt.Fprintf(w, " | %s", g.figure)
		}
		fmt.Fprintf(w, " |\n|---%s|\n", strings.Repeat("|---:", len(group)))
		for _, name := range names {
			_, variant, _ := strings.Cut(name, "/")
			fmt.Fprintf(w, "| %s", variant)
			for _, g := range group {
				text := ""
				if v, ok := all.value(name, g.unit); ok {
					text = short(v) + g.shown
					if !g.limit.isMet(v, g.target) {
						text = "**" + text + "**"
					}
				}
				fmt.Fprintf(w, " | %s", text)
			}
			fmt.Fprint(w, " |\n")
		}
	}
}

// short writes a number with three digits, but all of those before the point.
func short(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
