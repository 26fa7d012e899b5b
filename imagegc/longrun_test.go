package imagegc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// IG-1, IG-2, IG-3: a year on a node that gets a new release of something every
// eight hours and is restarted each month, now and then with its file of ages cut.
func TestCollector_OneYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(3, 4))
		s := newStore(10_000)
		s.layers["base"] = 500
		inUse := map[string]bool{}
		lastUsed := map[string]time.Time{}
		s.onRemove = func(id string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			require.False(t, inUse[id], "an image in use goes")
			unused := time.Since(lastUsed[id])
			require.Greater(t, unused, time.Minute)
		}
		cfg := imagegc.Config{
			Images: s, RecordsFile: t.TempDir() + "/ages", Period: 12 * time.Hour,
			Policy: imagegc.Policy{MaxAge: 60 * 24 * time.Hour},
		}
		removals, lost := 0, 0
		cfg.Hooks.Removed = func(runtime.Image, imagegc.Reason, time.Duration, error) { removals++ }
		cfg.Hooks.RecordsLost = func(error) { lost++ }
		var current [5]string
		for month := range 12 {
			ctx, cancel := context.WithCancel(t.Context())
			c := collector(t, cfg)
			ended := make(chan error)
			go func() { ended <- c.Run(ctx) }()
			time.Sleep(time.Minute) // never at the same instant as a look
			for release := range 90 {
				app := rnd.IntN(len(current))
				name := fmt.Sprintf("app%d-m%d-r%d", app, month, release)
				id := s.pull(name, 100+rnd.Uint64N(500), "base")
				s.mu.Lock()
				if current[app] != "" {
					inUse[current[app]] = false
					lastUsed[current[app]] = time.Now()
				}
				current[app], inUse[id] = id, true
				s.inUse = nil
				for _, id := range current {
					if id != "" {
						s.inUse = append(s.inUse, id)
					}
				}
				s.mu.Unlock()
				time.Sleep(8 * time.Hour)
				s.mu.Lock()
				require.LessOrEqual(t, s.used(), uint64(8500+1200), "the disk is kept below the threshold")
				s.mu.Unlock()
			}
			cancel()
			require.NoError(t, <-ended)
			if month%4 == 3 {
				damage(t, cfg.RecordsFile)
			}
		}
		require.Greater(t, removals, 900)
		require.Equal(t, 2, lost, "the damage of the last month is not read again")
	})
}

// damage cuts a file in half.
func damage(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, info.Size()/2))
}
