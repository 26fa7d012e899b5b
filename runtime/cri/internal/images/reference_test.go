package images

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

func TestParseReference(t *testing.T) {
	const sha = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	for name, want := range map[string]Reference{
		"busybox":                                 {DockerHub, "library/busybox", "", ""},
		"busybox:1.36":                            {DockerHub, "library/busybox", "1.36", ""},
		"lab/busybox":                             {DockerHub, "lab/busybox", "", ""},
		"localhost/a/b:x":                         {"localhost", "a/b", "x", ""},
		"127.0.0.1:5000/lab/busybox:1":            {"127.0.0.1:5000", "lab/busybox", "1", ""},
		"[fd00::1]:5000/a:1":                      {"[fd00::1]:5000", "a", "1", ""},
		"reg.example/a__b/c-d.e@" + sha:           {"reg.example", "a__b/c-d.e", "", sha},
		"reg.example:80/a:t@" + sha:               {"reg.example:80", "a", "t", sha},
		"index.docker.io/library/redis":           {DockerHub, "library/redis", "", ""},
		"docker.io/busybox":                       {DockerHub, "library/busybox", "", ""},
		"docker.io/lab/busybox":                   {DockerHub, "lab/busybox", "", ""},
		"a@sha512:" + strings.Repeat("0f", 64):    {DockerHub, "library/a", "", "sha512:" + strings.Repeat("0f", 64)},
		"reg.example/" + strings.Repeat("a", 255): {"reg.example", strings.Repeat("a", 255), "", ""},
		strings.Repeat("a", 63) + "g":             {DockerHub, "library/" + strings.Repeat("a", 63) + "g", "", ""},
		"Registry/lower":                          {"Registry", "lower", "", ""},
		"registry.k8s.io/pause:3.10":              {"registry.k8s.io", "pause", "3.10", ""},
		"my_registry.lan/lab/busybox:1":           {"my_registry.lan", "lab/busybox", "1", ""},
		strings.Repeat("a/", 20) + "b:c":          {DockerHub, strings.Repeat("a/", 20) + "b", "c", ""},
	} {
		got, err := ParseReference(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{
		"", " ", "a b", "UPPER", "a/UPPER", "a:", "a:b c", "a@", "a@sha256:xyz", "a//b", "/a", "a/", "reg.example/", ":5000/a", "-a", "a:-", "host:port/a", "my_registry.lan:5000/a", "My_registry.lan/a", "_registry.lan/a",
		strings.Repeat("a", 5000), "reg.example/" + strings.Repeat("a", 256), strings.Repeat("b/", 130) + "b",
		strings.Repeat("a", 64), "a@" + strings.ToUpper(sha), "a@sha256:" + strings.Repeat("A", 64), "a@sha256:" + strings.Repeat("a", 63),
		"a@sha1:" + strings.Repeat("a", 40), "a@foo:" + strings.Repeat("0", 32), "a@sha512:" + strings.Repeat("0", 64), "a@:" + strings.Repeat("0", 64),
	} {
		_, err := ParseReference(name)
		assert.ErrorIs(t, err, runtime.ErrInvalid, name)
	}
	bare, _ := ParseReference("busybox")
	assert.Equal(t, "busybox:latest", withTag("busybox", bare))
	pinned, _ := ParseReference("busybox@" + sha)
	assert.Equal(t, "busybox@"+sha, withTag("busybox@"+sha, pinned))
}

// The forms of a reference's parts against the expressions of the distribution
// specification.
func FuzzParseReference_Forms(f *testing.F) {
	for _, seed := range []string{
		"a", "a__b", "a-.b", "sha256:" + strings.Repeat("a", 32), "a+b.c:" + strings.Repeat("0", 64), "[::1]:5", "a.b:80", "-", "A_b.c-", "",
		"a..b", "a___b", "a--b", "a-", ".a", "z", "{", "g", "F", "G", "[::1]", "[::1", "[]", "[]:1", "[::g]", "[::1]:", "[::1]x5", "[::1]:5x", "a:", "a:5x", ":5", "-a.b", "a.-b",
		strings.Repeat("a", 128), strings.Repeat("a", 129), "sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("g", 64), "[a]", "[F]", "[G]", "[`]",
	} {
		f.Add(seed)
	}
	label := `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	forms := []struct {
		is   func(string) bool
		expr *regexp.Regexp
	}{
		{digestForm, regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$`)},
		{tagForm, regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)},
		{pathForm, regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)},
		{registryForm, regexp.MustCompile(`^(?:` + label + `(?:\.` + label + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?$`)},
	}
	f.Fuzz(func(t *testing.T, s string) {
		for i, form := range forms {
			require.Equal(t, form.expr.MatchString(s), form.is(s), "form %d of %q", i, s)
		}
	})
}

func FuzzParseReference(f *testing.F) {
	for _, seed := range []string{"busybox", "a.b:5/c/d:e@sha256:" + strings.Repeat("0", 64), "[::1]:1/a", "@", ":", "//"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		r, err := ParseReference(name)
		if err != nil {
			return
		}
		// What was taken apart can be put together again.
		second := r.Registry + "/" + r.Path
		if r.Tag != "" {
			second += ":" + r.Tag
		}
		if r.Digest != "" {
			second += "@" + r.Digest
		}
		got, err := ParseReference(second)
		require.NoError(t, err, second)
		require.Equal(t, r, got)
	})
}
