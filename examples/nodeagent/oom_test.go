package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAdjustOOMScore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "oom_score_adj")
	require.NoError(t, adjustOOMScore(file, -999), "a system without the file has no such score")
	require.NoFileExists(t, file)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, adjustOOMScore(file, -999))
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "-999", string(written))
}
