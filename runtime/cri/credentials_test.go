package cri

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

func TestParseImage(t *testing.T) {
	const sha = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	for name, want := range map[string]imageRef{
		"busybox":                                 {dockerHub, "library/busybox", "", ""},
		"busybox:1.36":                            {dockerHub, "library/busybox", "1.36", ""},
		"lab/busybox":                             {dockerHub, "lab/busybox", "", ""},
		"localhost/a/b:x":                         {"localhost", "a/b", "x", ""},
		"127.0.0.1:5000/lab/busybox:1":            {"127.0.0.1:5000", "lab/busybox", "1", ""},
		"[fd00::1]:5000/a:1":                      {"[fd00::1]:5000", "a", "1", ""},
		"reg.example/a__b/c-d.e@" + sha:           {"reg.example", "a__b/c-d.e", "", sha},
		"reg.example:80/a:t@" + sha:               {"reg.example:80", "a", "t", sha},
		"index.docker.io/library/redis":           {dockerHub, "library/redis", "", ""},
		"docker.io/busybox":                       {dockerHub, "library/busybox", "", ""},
		"docker.io/lab/busybox":                   {dockerHub, "lab/busybox", "", ""},
		"a@sha512:" + strings.Repeat("0f", 64):    {dockerHub, "library/a", "", "sha512:" + strings.Repeat("0f", 64)},
		"reg.example/" + strings.Repeat("a", 255): {"reg.example", strings.Repeat("a", 255), "", ""},
		strings.Repeat("a", 63) + "g":             {dockerHub, "library/" + strings.Repeat("a", 63) + "g", "", ""},
		"Registry/lower":                          {"Registry", "lower", "", ""},
		"registry.k8s.io/pause:3.10":              {"registry.k8s.io", "pause", "3.10", ""},
		strings.Repeat("a/", 20) + "b:c":          {dockerHub, strings.Repeat("a/", 20) + "b", "c", ""},
	} {
		got, err := parseImage(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{
		"", " ", "a b", "UPPER", "a/UPPER", "a:", "a:b c", "a@", "a@sha256:xyz", "a//b", "/a", "a/", "reg.example/", ":5000/a", "-a", "a:-", "host:port/a",
		strings.Repeat("a", 5000), "reg.example/" + strings.Repeat("a", 256), strings.Repeat("b/", 130) + "b",
		strings.Repeat("a", 64), "a@" + strings.ToUpper(sha), "a@sha256:" + strings.Repeat("A", 64), "a@sha256:" + strings.Repeat("a", 63),
		"a@sha1:" + strings.Repeat("a", 40), "a@foo:" + strings.Repeat("0", 32), "a@sha512:" + strings.Repeat("0", 64), "a@:" + strings.Repeat("0", 64),
	} {
		_, err := parseImage(name)
		assert.ErrorIs(t, err, runtime.ErrInvalid, name)
	}
	bare, _ := parseImage("busybox")
	assert.Equal(t, "busybox:latest", withTag("busybox", bare))
	pinned, _ := parseImage("busybox@" + sha)
	assert.Equal(t, "busybox@"+sha, withTag("busybox@"+sha, pinned))
}

// IM-5: by host and path prefix, the longest match first.
func TestKeyringLookup(t *testing.T) {
	ring, err := newKeyring([]podspec.Object{
		dockerSecret("one", `{"auths":{
			"https://index.docker.io/v1/": {"auth":"aHViOnB3"},
			"https://reg.example/v2/": {"username":"all","password":"p"},
			"reg.example/shop": {"username":"shop","password":"p"},
			"*.cloud.example": {"username":"glob","password":"p"},
			"eu.cloud.example": {"username":"eu","password":"p"},
			"reg.example:5000": {"username":"port","password":"p"},
			"[fd00::1]:5000": {"username":"six","password":"p"},
			"[fd00::2]": {"username":"bare","password":"p"},
			"registry-1.docker.io": {"username":"first","password":"p"},
			"docker.io/library": {"username":"library","password":"p"},
			"http://plain.example/team/": {"registrytoken":"t"}}}`),
		{Ref: podspec.Ref{Name: "old"}, Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{
			corev1.DockerConfigKey: []byte(`{"reg.example/shop/web": {"username":"web","password":"p","email":"x@y"}}`),
		}},
	})
	require.NoError(t, err)
	for image, want := range map[string][]string{
		"busybox":                    {"library", "hub"},
		"docker.io/busybox":          {"library", "hub"},
		"[fd00::1]:5000/foo":         {"six"},
		"[fd00::1]:5001/foo":         nil,
		"[fd00::2]/foo":              {"bare"},
		"[f]/foo":                    nil,
		"registry-1.docker.io/lab/x": {"first"},
		"docker.io/lab/x":            {"hub"},
		"reg.example/shop/web:1":     {"web", "shop", "all"},
		"reg.example/shop/webx:1":    {"shop", "all"},
		"reg.example/shopping:1":     {"all"},
		"reg.example:5000/x":         {"port"},
		"eu.cloud.example/x":         {"eu", "glob"},
		"a.b.cloud.example/x":        nil,
		"plain.example/team/x":       {""},
		"elsewhere.example/x":        nil,
	} {
		parsed, err := parseImage(image)
		require.NoError(t, err)
		var got []string
		for _, a := range ring.lookup(parsed) {
			got = append(got, a.GetUsername())
		}
		assert.Equal(t, want, got, image)
	}
}

// A secret that is malformed costs nothing but itself, and its error
// holds none of it.
func TestMalformedPullSecrets(t *testing.T) {
	ring, err := newKeyring([]podspec.Object{
		dockerSecret("torn", `{"auths":{"a.example":{"auth":"hunter2`),
		dockerSecret("odd", `{"auths":{"b.example":{"auth":"%%%hunter2"},"":{"username":"u"},"c.example":{"username":"ok","password":"hunter2"}}}`),
		{Ref: podspec.Ref{Name: "empty"}},
	})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "hunter2")
	for _, name := range []string{"shop/torn", "shop/odd", "empty"} {
		assert.ErrorContains(t, err, name)
	}
	require.Len(t, ring, 1)
	assert.Equal(t, "ok", ring[0].auth.GetUsername())
}

// The forms of a reference's parts against the expressions of the distribution
// specification.
func FuzzForms(f *testing.F) {
	for _, seed := range []string{"a", "a__b", "a-.b", "sha256:" + strings.Repeat("a", 32), "a+b.c:" + strings.Repeat("0", 64), "[::1]:5", "a.b:80", "-", "A_b.c-", ""} {
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

func FuzzParseImage(f *testing.F) {
	for _, seed := range []string{"busybox", "a.b:5/c/d:e@sha256:" + strings.Repeat("0", 64), "[::1]:1/a", "@", ":", "//"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		r, err := parseImage(name)
		if err != nil {
			return
		}
		// What was taken apart can be put together again.
		second := r.registry + "/" + r.path
		if r.tag != "" {
			second += ":" + r.tag
		}
		if r.digest != "" {
			second += "@" + r.digest
		}
		got, err := parseImage(second)
		require.NoError(t, err, second)
		require.Equal(t, r, got)
	})
}

func FuzzDockerConfigJSON(f *testing.F) {
	f.Add([]byte(`{"auths":{"a.example/x":{"auth":"dTpw"}}}`))
	f.Add([]byte(`{"auths":{"https://[::1]:5/v2/":{"username":"u","password":"p"}}}`))
	f.Add([]byte(`{"auths":null}`))
	image, _ := parseImage("reg.example/shop/web:1")
	f.Fuzz(func(t *testing.T, text []byte) {
		ring, err := newKeyring([]podspec.Object{dockerSecret("s", string(text))})
		for _, c := range ring {
			require.NotEmpty(t, c.host)
			require.NotNil(t, c.auth)
			if p := c.auth.GetPassword(); len(p) > 8 && err != nil {
				require.NotContains(t, err.Error(), p)
			}
		}
		ring.lookup(image)
	})
}

func FuzzScrub(f *testing.F) {
	f.Add("401 for ann:secret", "secret")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, said, password string) {
		auth, ok := authOf(dockerEntry{Username: "ann", Password: password})
		require.True(t, ok)
		if password != "" && !strings.Contains("[redacted]the message is withheld: it may hold a credential", password) {
			require.NotContains(t, scrub(said, auth), password)
		}
	})
}
