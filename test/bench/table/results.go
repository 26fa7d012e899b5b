package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// results are the values of each run, by benchmark without the prefix Benchmark and the suffix of GOMAXPROCS, and by unit.
type results map[string]map[string][]float64

var processors = regexp.MustCompile(`-\d+$`)

// add reads the output of go test. Other lines are left out.
func (r results) add(text []byte) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(fields[1]); err != nil {
			continue
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				continue
			}
			if r[name] == nil {
				r[name] = map[string][]float64{}
			}
			r[name][fields[i+1]] = append(r[name][fields[i+1]], value)
		}
	}
}

// value is the median of the runs of a benchmark.
func (r results) value(benchmark, unit string) (float64, bool) {
	runs := slices.Sorted(slices.Values(r[benchmark][unit]))
	if len(runs) == 0 {
		return 0, false
	}
	return (runs[(len(runs)-1)/2] + runs[len(runs)/2]) / 2, true
}

// compareWithBest has the best raw calls of bursts be those of the concurrency that is best in the median of all runs, and not in each
// run another one: the best of several single measurements is better than what any concurrency reaches.
func (r results) compareWithBest() {
	for name, units := range r {
		for _, c := range []struct{ ratio, best, of string }{
			{"throughput/raw", "raw-up-ms", "raw%s-up-ms"},
			{"deletion/raw", "raw-down-ms", "raw%s-down-ms"},
		} {
			ratio, best := math.Inf(1), ""
			for unit := range units {
				if concurrency, ok := strings.CutPrefix(unit, c.ratio); ok && concurrency != "" {
					if v, _ := r.value(name, unit); v < ratio {
						ratio, best = v, concurrency
					}
				}
			}
			if best != "" {
				units[c.ratio], units[c.best] = []float64{ratio}, units[fmt.Sprintf(c.of, best)]
			}
		}
	}
}

// matching returns the benchmarks with a unit that a pattern matches, in order.
func (r results) matching(pattern, unit string) (names []string) {
	p := regexp.MustCompile("^(" + pattern + ")$")
	for name, units := range r {
		if p.MatchString(name) && len(units[unit]) > 0 {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, compareNumbers)
	return names
}

var number = regexp.MustCompile(`\d+`)

// compareNumbers orders pods=30 before pods=250.
func compareNumbers(a, b string) int {
	pad := func(s string) string {
		return number.ReplaceAllStringFunc(s, func(n string) string { return strings.Repeat("0", max(0, 9-len(n))) + n })
	}
	return strings.Compare(pad(a), pad(b))
}
