package logrotate

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// The limits of a configuration are inclusive, and each is checked for itself.
func TestNew_ChecksLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"valid":                       {func(*Config) {}, ""},
		"no runtime":                  {func(c *Config) { c.Runtime = nil }, "Runtime and LogsDir required"},
		"no logs directory":           {func(c *Config) { c.LogsDir = "" }, "Runtime and LogsDir required"},
		"two files":                   {func(c *Config) { c.MaxFiles = 2 }, ""},
		"one file":                    {func(c *Config) { c.MaxFiles = 1 }, "MaxFiles must be at least 2"},
		"negative number of workers":  {func(c *Config) { c.MaxWorkers = -1 }, "MaxWorkers must not be negative"},
		"negative monitor interval":   {func(c *Config) { c.MonitorInterval = -1 }, "MonitorInterval, SizePollInterval and Timeout must not"},
		"negative size poll interval": {func(c *Config) { c.SizePollInterval = -1 }, "MonitorInterval, SizePollInterval and Timeout must not"},
		"negative timeout":            {func(c *Config) { c.Timeout = -1 }, "MonitorInterval, SizePollInterval and Timeout must not"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Runtime: noContainers{}, LogsDir: t.TempDir()}
			tt.change(&cfg)
			r, err := New(cfg)
			if tt.want == "" {
				require.NoError(t, err)
				require.NotNil(t, r)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, r)
		})
	}
}

func TestNew_SetsDefaults(t *testing.T) {
	r, err := New(Config{Runtime: noContainers{}, LogsDir: "/logs"})
	require.NoError(t, err)
	cfg := r.cfg
	require.NotNil(t, cfg.Logger)
	cfg.Runtime, cfg.Logger = nil, nil
	assert.Equal(t, Config{
		LogsDir: "/logs", MaxSize: 10 << 20, MaxFiles: 5, MonitorInterval: 10 * time.Second, SizePollInterval: 500 * time.Millisecond,
		Timeout: 10 * time.Second, MaxWorkers: 4,
	}, cfg)
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := New(Config{MaxFiles: 1, SizePollInterval: -1})
	for _, want := range []string{"Runtime and LogsDir required", "MaxFiles must be at least 2", "MonitorInterval"} {
		assert.ErrorContains(t, err, want)
	}
}

// noContainers is a runtime without containers.
type noContainers struct{}

func (noContainers) Pods(context.Context) ([]runtime.Pod, error) { return nil, nil }
func (noContainers) ReopenLog(context.Context, string) error     { return nil }
