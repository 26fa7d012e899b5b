// Package cases writes tables of cases with what the kubelet makes of them.
package cases

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Write tries random cases and writes some to a file in the directory $CASES, for the kubelet's $VERSION: those with which the code under test
// reaches a statement that it has not reached before, and those with something else that is new. next returns a case with
// its result, and the traits that are to be in the table, nil to leave it out; size grows from 0 to 1, so that simple cases come first.
func Write[C any](t *testing.T, file, about string, tries int, next func(r *rand.Rand, size float64) (c C, traits []string)) {
	var out bytes.Buffer
	for _, line := range strings.Split(strings.TrimSpace(about), "\n") {
		fmt.Fprintf(&out, "# %s\n", strings.TrimSpace(line))
	}
	fmt.Fprintf(&out, "# Written by internal/kubelettest/testdata/kubelet/generate.sh from the code of the kubelet %s; do not edit.\n", os.Getenv("VERSION"))
	r, all, covered, kept := rand.New(rand.NewPCG(1, 37)), map[string]bool{}, testing.Coverage(), 0
	for i := range tries {
		c, traits := next(r, float64(i)/float64(tries))
		now, known := testing.Coverage(), len(all)
		for _, trait := range traits {
			all[trait] = true
		}
		if traits == nil || now <= covered && len(all) == known {
			continue
		}
		covered, kept = now, kept+1
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, empty := range []string{`,"resources":{}`, `"metadata":{},`, `,"status":{}`} {
			line = bytes.ReplaceAll(line, []byte(empty), nil)
		}
		out.Write(append(line, '\n'))
	}
	path := filepath.Join(os.Getenv("CASES"), file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d of %d cases, %d bytes, coverage %.3f", file, kept, tries, out.Len(), covered)
}

// One returns one of the values by chance.
func One[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// Chance is true with the probability p.
func Chance(r *rand.Rand, p float64) bool { return r.Float64() < p }
