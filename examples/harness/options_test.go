package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptions(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("# a comment\n\na pod has an address: it has none: yet\n"), 0o600))
	invalid := filepath.Join(t.TempDir(), "invalid")
	require.NoError(t, os.WriteFile(invalid, []byte("no reason\n"), 0o600))

	tests := map[string]struct {
		env  map[string]string
		want int // options
		err  string
	}{
		"the known runtimes are always added":         {nil, 1, ""},
		"empty values count as unset":                 {map[string]string{"CRI_IMAGE": "", "CRI_WITHOUT": ""}, 1, ""},
		"every variable is an option":                 {map[string]string{"CRI_IMAGE": "a", "CRI_SECOND_IMAGE": "b", "CRI_LOG_ROOT": "/l", "CRI_CGROUP_PARENT": "/p", "CRI_RESTART": "true"}, 6, ""},
		"each missing ability is an option":           {map[string]string{"CRI_WITHOUT": "processes,limits, isolation"}, 4, ""},
		"an ability that does not exist is an error":  {map[string]string{"CRI_WITHOUT": "limit"}, 1, `CRI_WITHOUT: invalid value "limit"`},
		"lists of known failures are read":            {map[string]string{"CRI_KNOWN_FAILURES": list, "CRI_KNOWN_FLAKES": list}, 3, ""},
		"a list that does not exist is an error":      {map[string]string{"CRI_KNOWN_FAILURES": "/no/such/file"}, 2, "CRI_KNOWN_FAILURES: open /no/such/file"},
		"a line without a reason is an error":         {map[string]string{"CRI_KNOWN_FLAKES": invalid}, 2, `invalid line "no reason"`},
		"all errors of the environment are collected": {map[string]string{"CRI_KNOWN_FLAKES": invalid, "CRI_WITHOUT": "x,y"}, 2, `invalid value "y"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			opts, err := options(func(name string) string { return tc.env[name] })
			assert.Len(t, opts, tc.want)
			if tc.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.err)
			}
		})
	}

	reasons, err := readReasons(list)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a pod has an address": "it has none: yet"}, reasons)
}
