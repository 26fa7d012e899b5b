package logrotate_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/needtest"
	"github.com/sublet-dev/agent/logrotate"
)

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{"log rotation (runtime.LogReopener)"}, needtest.Names(logrotate.Config{}.Needs()))
	assert.Empty(t, needtest.Names(logrotate.Config{MaxSize: -1}.Needs()), "off")
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
