package podspec

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func someNames(name string) (string, bool) {
	v, ok := map[string]string{"A": "1", "B": "$(A)", "E": "", "long name": "x"}[name]
	return v, ok
}

// SP-4
func TestExpand(t *testing.T) {
	for in, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"$(A)":            "1",
		"x$(A)y$(A)z":     "x1y1z",
		"$(B)":            "$(A)", // what was put in is not expanded
		"$(E)":            "",
		"$(long name)":    "x",
		"$(NONE)":         "$(NONE)",
		"$()":             "$()",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$1",
		"$$$$(A)":         "$$(A)",
		"$A":              "$A",
		"$":               "$",
		"$$":              "$",
		"a$":              "a$",
		"$(A":             "$(A",
		"$(A$(A)":         "$(A$(A)", // the name is up to the first parenthesis
		"$(NONE)$(A)":     "$(NONE)1",
		"${A}":            "${A}",
		"$é$(A)":          "$é1",
		")$(A)(":          ")1(",
		"$(A)$(":          "1$(",
		"echo $$PATH $$$": "echo $PATH $$",
	} {
		assert.Equal(t, want, Expand(in, someNames), "%q", in)
	}
}

func TestExpandIsLinear(t *testing.T) {
	start := time.Now()
	in := strings.Repeat("$(", 4<<20)
	assert.Equal(t, in, Expand(in, someNames))
	assert.Less(t, time.Since(start), time.Minute) // and not hours
}

// expandSlowly is Expand one character at a time.
func expandSlowly(s string, lookup func(string) (string, bool)) string {
	switch {
	case s == "":
		return ""
	case strings.HasPrefix(s, "$$"):
		return "$" + expandSlowly(s[2:], lookup)
	case strings.HasPrefix(s, "$("):
		if i := strings.Index(s, ")"); i >= 0 {
			value, ok := lookup(s[2:i])
			if !ok {
				value = s[:i+1]
			}
			return value + expandSlowly(s[i+1:], lookup)
		}
		return s[:2] + expandSlowly(s[2:], lookup)
	case s[0] == '$' && len(s) > 1:
		return s[:2] + expandSlowly(s[2:], lookup)
	}
	return s[:1] + expandSlowly(s[1:], lookup)
}

// SP-4
func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"$(A)$$(A)$$$(B)", "$(A$(A)", "$", "($)$()", "$$(", "a)b$(c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1<<12 {
			return
		}
		if got, want := Expand(s, someNames), expandSlowly(s, someNames); got != want {
			t.Fatalf("Expand(%q) = %q, want %q", s, got, want)
		}
	})
}

func BenchmarkExpand(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Expand("--listen=$(A):80 --name=$(long name) $$(kept)", someNames)
	}
}
