package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The phases of each pod are printed in order. The order between pods at the same
// time is not defined.
func TestRun_PrintsPhasesInOrder(t *testing.T) {
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
		startTime := time.Now()
		require.NoError(t, run(t.Context(), &out))
		assert.Equal(t, 5*time.Second, time.Since(startTime), "a function returns when its context is done")
		got := map[string][]string{}
		for line := range strings.Lines(out.String()) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[name] = append(got[name], strings.TrimSpace(text))
		}
		assert.Equal(t, want, got)
	})
}
