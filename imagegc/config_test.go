package imagegc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
)

// Each field of a configuration is checked for itself.
func TestNew_ChecksConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*imagegc.Config)
		want   string
	}{
		"valid":                     {func(*imagegc.Config) {}, ""},
		"no store":                  {func(c *imagegc.Config) { c.Images = nil }, "Config.Images required"},
		"negative period":           {func(c *imagegc.Config) { c.Period = -1 }, "must not be negative"},
		"negative settle time":      {func(c *imagegc.Config) { c.DiskSettleTime = -1 }, "must not be negative"},
		"negative sources timeout":  {func(c *imagegc.Config) { c.SourcesTimeout = -1 }, "must not be negative"},
		"negative high threshold":   {func(c *imagegc.Config) { c.Policy.HighThresholdPercent, c.Policy.LowThresholdPercent = -1, -2 }, "HighThresholdPercent -1"},
		"maximum age without a min": {func(c *imagegc.Config) { c.Policy.MinAge, c.Policy.MaxAge = -1, 1 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := imagegc.Config{Images: newStore(1)}
			tt.change(&cfg)
			c, err := imagegc.New(cfg)
			if tt.want == "" {
				require.NoError(t, err)
				require.NotNil(t, c)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, c)
		})
	}
}

// IG-3: the records are saved when Run ends, and the Collector can be used after that.
func TestCollector_RunSavesRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 10)
		file := filepath.Join(t.TempDir(), "records")
		c := collector(t, imagegc.Config{Images: s, RecordsFile: file})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Minute)
		require.NoError(t, os.Remove(file))
		cancel()
		require.NoError(t, <-done)
		require.FileExists(t, file)
		_, err := c.Explain(t.Context(), true)
		require.NoError(t, err)
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
	})
}

// Collections and explanations wait for each other, as long as their contexts last.
func TestCollector_WaitsForOtherCollections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 10)
		s.slow = time.Minute
		var collected atomic.Int32
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MinAge: -1}, Hooks: imagegc.Hooks{
			Collected: func(imagegc.Result, error) { collected.Add(1) },
		}})
		done := make(chan error)
		go func() { done <- c.Reclaim(t.Context()) }()
		synctest.Wait()
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		_, err := c.Explain(ctx, true)
		require.ErrorIs(t, err, stop)
		result, err := c.Collect(ctx)
		require.ErrorIs(t, err, stop)
		assert.Zero(t, result)
		assert.Zero(t, collected.Load())
		startTime := time.Now()
		decisions, err := c.Explain(t.Context(), true)
		require.NoError(t, err)
		assert.Empty(t, decisions, "it was removed meanwhile")
		assert.Equal(t, 59*time.Second, time.Since(startTime))
		require.NoError(t, <-done)
	})
}
