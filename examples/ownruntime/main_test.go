package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each pod's life is told in order; what happens to different pods in the same
// moment may be told in any.
func TestRun(t *testing.T) {
	want := map[string][]string{
		"server": {
			"starts, attempt 0",
			"Syncing -> Terminating: Removed",
			"returns <nil>",
			"Terminating -> Terminated: Removed",
			"Terminated -> Finished: Removed",
		},
		"job": {
			"starts, attempt 0",
			"returns <nil>",
			"Syncing -> Terminating: Completed",
			"Terminating -> Terminated: Completed",
			"Terminated -> Finished: Completed",
		},
		"flaky": {
			"starts, attempt 0", "returns not yet",
			"starts, attempt 1", "returns not yet",
			"starts, attempt 2", "returns <nil>",
			"Syncing -> Terminating: Completed",
			"Terminating -> Terminated: Completed",
			"Terminated -> Finished: Completed",
		},
	}
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		began := time.Now()
		require.NoError(t, run(t.Context(), &out))
		assert.Equal(t, 5*time.Second, time.Since(began), "a function that heeds its context ends at once")
		got := map[string][]string{}
		for line := range strings.Lines(out.String()) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[name] = append(got[name], strings.TrimSpace(text))
		}
		assert.Equal(t, want, got)
	})
}
