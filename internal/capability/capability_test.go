package capability_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/capability"
)

// wrapped hides all methods of what it wraps.
type wrapped struct{ inner any }

func (w wrapped) Unwrap() any { return w.inner }

// itself never comes to an end.
type itself struct{}

func (i itself) Unwrap() any { return i }

// shouting has a method of its own that what it wraps has too.
type shouting struct{ wrapped }

func (shouting) String() string { return "LOUD" }

func TestOf(t *testing.T) {
	b := new(strings.Builder)
	b.WriteString("text")
	for name, tt := range map[string]struct {
		v    any
		want string
	}{
		"what can":                  {b, "text"},
		"what is decorated":         {wrapped{wrapped{b}}, "text"},
		"a decorator's own first":   {shouting{wrapped{b}}, "LOUD"},
		"what cannot":               {wrapped{1}, ""},
		"nothing":                   {nil, ""},
		"a decorator of nothing":    {wrapped{}, ""},
		"one that wraps itself":     {itself{}, ""},
		"no decorator, though kept": {struct{ inner fmt.Stringer }{b}, ""},
	} {
		got, ok := capability.Of[fmt.Stringer](tt.v)
		assert.Equal(t, tt.want != "", ok, name)
		if ok {
			assert.Equal(t, tt.want, got.String(), name)
		}
	}
}

func ExampleOf() {
	_, ok := capability.Of[io.StringWriter](wrapped{new(strings.Builder)})
	fmt.Println(ok)
	// Output: true
}
