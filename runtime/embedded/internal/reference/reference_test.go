package reference

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const someDigest = "sha256:9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"

func TestParseReference(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                                "docker.io/library/busybox:latest",
		"busybox:1.36":                           "docker.io/library/busybox:1.36",
		"org/app":                                "docker.io/org/app:latest",
		"docker.io/busybox":                      "docker.io/library/busybox:latest",
		"docker.io/org/app":                      "docker.io/org/app:latest",
		"index.docker.io/busybox:1":              "docker.io/library/busybox:1",
		"localhost/app":                          "localhost/app:latest",
		"127.0.0.1:5000/lab/busybox:1":           "127.0.0.1:5000/lab/busybox:1",
		"registry.k8s.io/e2e/x__y/a-b.c:v1_2":    "registry.k8s.io/e2e/x__y/a-b.c:v1_2",
		"gcr.io/x/y@" + someDigest:               "gcr.io/x/y@" + someDigest,
		"gcr.io/x/y:t@" + someDigest:             "gcr.io/x/y:t@" + someDigest,
		"x/y@sha512:" + strings.Repeat("0", 128): "docker.io/x/y@sha512:" + strings.Repeat("0", 128),
		"[::1]:5000/app:1":                       "[::1]:5000/app:1",
		"[2001:db8::1]/app":                      "[2001:db8::1]/app:latest",
	} {
		got, err := Parse(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, got.String(), in)
	}
	for _, bad := range []string{
		"", "UPPER", "a b", "x:", "x:-t", "/x", "x/", "x//y", "-x", "x-", "x@sha256:1", "x@md5:" + strings.Repeat("0", 64), "ho_st.com/x", "h:p/x",
		"[::1/x", "[::1]5000/x", "[::1]:/x", "[::1]:p/x", "[1.2.3.4]/x", "[fe80::1%lo]/x", "[]/x", "x@sha512:" + strings.Repeat("0", 64),
		strings.Repeat("x", 600), strings.Repeat("x", 500), "a/../b", "x___y", "é",
	} {
		_, err := Parse(bad)
		assert.Error(t, err, bad)
	}
}

func FuzzReference(f *testing.F) {
	f.Add("busybox")
	f.Add("docker.io/busybox")
	f.Add("127.0.0.1:5000/a/b:c@" + someDigest)
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := Parse(s)
		if err != nil {
			return
		}
		parsed, err := Parse(ref.String())
		require.NoError(t, err)
		assert.Equal(t, ref, parsed, "a complete reference is parsed to itself")
	})
}
