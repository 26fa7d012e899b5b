package text

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestError(t *testing.T) {
	require.NoError(t, Error(nil))
	require.ErrorIs(t, Error(io.EOF), io.EOF)
	longest := strings.Repeat("x", 1024)
	require.EqualError(t, Error(errors.New(longest)), longest)
	require.EqualError(t, Error(errors.New(longest+"y")), longest[:1021]+"…")
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "",
		"ten bytes!":                  "ten bytes!",
		"eleven byte":                 "eleven ...",
		"sixteen bytes \u20ac":        "sixteen...",
		"\u20ac\u20ac\u20ac\u20ac":    "\u20ac\u20ac...",
		"a\xffb":                      "a\uFFFDb",
		strings.Repeat("a\xff", 5):    "a\uFFFDa...",
		strings.Repeat("\xff", 1<<20): "\uFFFD...",
		"abcdefgh\xff":                "abcdefg...",
	} {
		assert.Equal(t, want, Clip(in, 10, "..."), "%.20q", in)
	}
}
