package pathname_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/pathname"
)

func ExampleIsElement() {
	fmt.Println(pathname.IsElement("6f1c2d"), pathname.IsElement("../6f1c2d"))
	// Output: true false
}

func TestIsElement(t *testing.T) {
	for s, want := range map[string]bool{
		"a": true, "a.b-c_d": true, "...": true, "..data": true, strings.Repeat("x", 253): true,
		"": false, ".": false, "..": false, "/": false, "a/b": false, "/a": false, "a/": false, "a\x00": false, strings.Repeat("x", 254): false,
	} {
		assert.Equal(t, want, pathname.IsElement(s), "%q", s)
	}
}

// Whatever is let through stays where it is put.
func FuzzIsElement(f *testing.F) {
	f.Add("a")
	f.Add("../a")
	f.Fuzz(func(t *testing.T, s string) {
		if pathname.IsElement(s) && filepath.Dir(filepath.Join("/root", s)) != "/root" {
			t.Fatalf("%q leaves its folder", s)
		}
	})
}
