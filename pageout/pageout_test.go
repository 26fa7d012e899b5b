package pageout

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logtest"
)

func TestNew_RejectsNegativeDelay(t *testing.T) {
	_, err := New(Config{Delay: -time.Second})
	require.EqualError(t, err, "pageout: Config.Delay: -1s must not be negative")
}

func TestRunner_PagesOutOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"paged out":     {nil, "level=DEBUG msg=\"program paged out\" releasedBytes=4096\n"},
		"not supported": {errors.ErrUnsupported, "level=INFO msg=\"program not paged out\" err=\"unsupported operation\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				r, err := New(Config{Logger: logtest.NewLogger(&out, slog.LevelDebug)})
				require.NoError(t, err)
				began := time.Now()
				var calls []time.Duration
				r.program = func() (int64, error) {
					calls = append(calls, time.Since(began))
					return 4096, tc.err
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				require.NoError(t, r.Run(ctx))
				assert.Equal(t, []time.Duration{5 * time.Second}, calls)
				assert.Equal(t, time.Hour, time.Since(began), "Run returned before its context was done, which ends an agent")
				assert.Equal(t, tc.want, out.String())
			})
		})
	}
}

func TestRunner_EndsBeforeDelay(t *testing.T) {
	r, err := New(Config{Delay: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	r.program = func() (int64, error) { panic("called after the end") }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Run(ctx))
}
