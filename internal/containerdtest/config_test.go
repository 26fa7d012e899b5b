//go:build linux

package containerdtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Where criu is installed but does not work, containerd makes no checkpoints, as where there is none.
func TestConfig_CRIU(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"missing": {"", "enable_criu = true\n"}, // containerd itself says that there is none
		"works":   {"#!/bin/sh\nexit 0\n", "enable_criu = true\n"},
		"fails":   {"#!/bin/sh\nexit 1\n", "enable_criu = false\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if tc.script != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "criu"), []byte(tc.script), 0o755))
			}
			n := &Node{dir: dir, bin: binaries{major: "2"}}
			assert.Contains(t, n.config("pause"), tc.want)
		})
	}
}
