package logrotate_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/runtime"
)

// needs lists what a Config needs of a runtime that can do nothing.
func needs(list []runtime.Need) (names []string) {
	for _, n := range list {
		name := n.String()
		if n.Optional {
			name = "optional: " + name
		}
		names = append(names, name)
	}
	return names
}

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{"log rotation (runtime.LogReopener)"}, needs(logrotate.Config{}.Needs()))
	assert.Empty(t, needs(logrotate.Config{MaxSize: -1}.Needs()), "off")
}

func TestConfig_CheckNeedsNothingRequired(t *testing.T) {
	require.NoError(t, logrotate.Config{MaxSize: -1}.Check())
	require.NoError(t, logrotate.Config{MaxFiles: 2}.Check())
	require.ErrorContains(t, logrotate.Config{MaxFiles: 1}.Check(), "MaxFiles must be at least 2")
	require.ErrorContains(t, logrotate.Config{MaxFiles: -1}.Check(), "MaxFiles must be at least 2")
	require.ErrorContains(t, logrotate.Config{MaxWorkers: -1}.Check(), "MaxWorkers must not be negative")
}

// A Rotator that never rotates needs neither a runtime nor a directory, and makes none.
func TestRotator_OffWaitsForItsEnd(t *testing.T) {
	r, err := logrotate.New(logrotate.Config{MaxSize: -1})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			assert.NoError(t, r.Run(ctx))
			ended = true
		}()
		synctest.Wait()
		assert.False(t, ended)
		cancel()
		synctest.Wait()
		assert.True(t, ended)
	})
}
