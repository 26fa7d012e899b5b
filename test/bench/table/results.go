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

// compareWithRaw adds to bursts how they compare with the raw calls of several at a time that ran beside them, whichever number that was.
// It has the best raw calls be those of the number that is best in the median of all runs, and not in each run another one: the best of
// several single measurements is better than what any number reaches.
func (r results) compareWithRaw() {
	for name, units := range r {
		for _, c := range []struct{ ratio, parallel, best, of string }{
			{"throughput/raw", parallelThroughput, "raw-up-ms", "raw%s-up-ms"},
			{"deletion/raw", parallelDeletion, "raw-down-ms", "raw%s-down-ms"},
		} {
			ratio, best := math.Inf(1), ""
			var parallel []float64
			for unit, runs := range units {
				atOnce, ok := strings.CutPrefix(unit, c.ratio)
				if !ok || atOnce == "" {
					continue
				}
				if v, _ := r.value(name, unit); v < ratio {
					ratio, best = v, atOnce
				}
				if atOnce != "1" {
					parallel = append(parallel, runs...)
				}
			}
			if best != "" {
				units[c.ratio], units[c.best] = []float64{ratio}, units[fmt.Sprintf(c.of, best)]
				units[c.parallel] = parallel
			}
		}
	}
}

// Units that compareWithRaw adds.
const (
	parallelThroughput = "throughput/parallel-raw"
	parallelDeletion   = "deletion/parallel-raw"
)

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
