package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name, goos, goarch string
		tests              bool
		text, err          string
	}{
		{"all compiles", "linux", "arm64", true, "linux/arm64: 3 packages\n", ""},
		{"32 bits, tests left out", "linux", "arm", false, "linux/arm: 2 packages\n", ""},
		{"32 bits", "linux", "arm", true, "sample_test.go:10:", "1 error(s) for linux/arm"},
		{"a file of another system", "darwin", "arm64", false, "sample.go:7:18: undefined: sub.Limit", "1 error(s) for darwin/arm64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Chdir("testdata/sample")
			var out bytes.Buffer
			err := run(&out, tc.goos, tc.goarch, tc.tests, []string{"./..."})
			if assert.Contains(t, out.String(), tc.text); tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.err)
		})
	}
}

func TestRun_NamesWhatCannotBeListed(t *testing.T) {
	t.Chdir("testdata/sample")
	err := run(t.Output(), "linux", "amd64", true, []string{"./missing"})
	require.ErrorContains(t, err, "go list")
}
