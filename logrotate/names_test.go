package logrotate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlanCleanup(t *testing.T) {
	const (
		first, second, third = "0.log.20260101-000000", "0.log.20260102-000000.000000000", "0.log.20260103-000000"
		sameAsSecond         = "0.log.20260102-000000"
	)
	last := time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		names []string
		keep  int
		want  cleanupPlan
	}{
		"nothing was rotated":                      {[]string{"0.log", "1.log"}, 4, cleanupPlan{}},
		"all are compressed except the newest":     {[]string{third, "0.log", first, second}, 4, cleanupPlan{compress: []string{first, second}, last: last}},
		"compressed ones stay as they are":         {[]string{first + ".gz", third, second + ".gz"}, 4, cleanupPlan{last: last}},
		"the oldest are removed":                   {[]string{third, second, first}, 1, cleanupPlan{remove: []string{first, second}, last: last}},
		"compressed ones too":                      {[]string{third, second + ".gz", first + ".gz"}, 1, cleanupPlan{remove: []string{first + ".gz", second + ".gz"}, last: last}},
		"as many as there may be are kept":         {[]string{third, second + ".gz", first + ".gz"}, 2, cleanupPlan{remove: []string{first + ".gz"}, last: last}},
		"all are removed":                          {[]string{third}, 0, cleanupPlan{remove: []string{third}, last: last}},
		"with both, the original is removed":       {[]string{third, first, first + ".gz"}, 4, cleanupPlan{remove: []string{first}, last: last}},
		"in whichever order they are listed":       {[]string{first + ".gz", first, third}, 4, cleanupPlan{remove: []string{first}, last: last}},
		"both are removed if there are too many":   {[]string{third, first, first + ".gz"}, 1, cleanupPlan{remove: []string{first + ".gz", first}, last: last}},
		"the newest is removed if it is complete":  {[]string{third, third + ".gz"}, 4, cleanupPlan{remove: []string{third}, last: last}},
		"temporary files are removed":              {[]string{third, third + ".tmp", first + ".gz.tmp", "1.log.tmp"}, 4, cleanupPlan{broken: []string{third + ".tmp", first + ".gz.tmp"}, last: last}},
		"of the same time, the names decide":       {[]string{third, second, sameAsSecond}, 2, cleanupPlan{remove: []string{sameAsSecond}, compress: []string{second}, last: last}},
		"and they decide in whichever order":       {[]string{third, sameAsSecond, second}, 2, cleanupPlan{remove: []string{sameAsSecond}, compress: []string{second}, last: last}},
		"a name of another log is left alone":      {[]string{"10.log.20260101-000000", third}, 0, cleanupPlan{remove: []string{third}, last: last}},
		"what only looks like one is left as well": {[]string{"0.log.bak", "0.log.20269901-000000", third}, 4, cleanupPlan{last: last}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, planCleanup("0.log", tt.names, tt.keep))
		})
	}
}

func TestNextStamp(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	assert.Equal(t, now, nextStamp(time.Time{}, now))
	assert.Equal(t, now, nextStamp(now.Add(-1), now))
	assert.Equal(t, now.Add(1), nextStamp(now, now), "no two rotated logs have the same name")
	assert.Equal(t, now.Add(time.Hour+1), nextStamp(now.Add(time.Hour), now))
}

// Cleanup plans follow the rules for random directories.
func TestPlanCleanup_RandomDirectories(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var names []string
		for i := range rnd.IntN(8) {
			name := fmt.Sprintf("0.log.2026010%d-00000%d.00000000%d", 1+rnd.IntN(2), rnd.IntN(5), i)
			if rnd.IntN(4) == 0 {
				name = name[:len("0.log.20260101-000000")]
			}
			for _, suffix := range []string{"", ".gz", ".gz", "", ".tmp"}[rnd.IntN(5):] {
				if rnd.IntN(3) == 0 && !slices.Contains(names, name+suffix) {
					names = append(names, name+suffix)
				}
			}
		}
		foreign := []string{"0.log", "1.log", "0.log.bak", "10.log.20260101-000000", "0.log.gz", "x.tmp"}
		keep := rnd.IntN(4)
		got := planCleanup("0.log", append(foreign, names...), keep)
		for _, name := range slices.Concat(got.remove, got.compress, got.broken) {
			require.NotContains(t, foreign, name, "seed %d", seed)
			require.Contains(t, names, name, "seed %d", seed)
		}
		left := map[string]int{}
		newest := ""
		for _, name := range names {
			bare := strings.TrimSuffix(name, ".gz")
			if strings.HasSuffix(name, ".tmp") {
				require.Contains(t, got.broken, name)
				continue
			}
			newest = max(newest, bare)
			if !slices.Contains(got.remove, name) {
				left[bare]++
			} else {
				require.NotContains(t, got.compress, name)
			}
		}
		require.LessOrEqual(t, len(left), keep, "seed %d", seed)
		for bare, n := range left {
			require.Equal(t, 1, n, "seed %d: %s is reported twice", seed, bare)
			for _, name := range got.remove {
				if removed := strings.TrimSuffix(name, ".gz"); left[removed] == 0 {
					require.Less(t, removed, bare, "seed %d: the oldest are removed", seed)
				}
			}
		}
		require.NotContains(t, got.compress, newest, "seed %d", seed)
	}
}
