package logrotate

import (
	"slices"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/logpath"
)

const (
	compressed = logpath.Compressed
	unfinished = ".tmp"
)

// cleanupPlan is what to do with the rotated logs of one container.
type cleanupPlan struct {
	remove   []string
	broken   []string // temporary files of compressions that were interrupted or still run
	compress []string
	last     time.Time // of the newest; zero if there is none
}

// planCleanup plans for the files in the directory of a log. The newest keep rotated
// logs are kept. All of them are compressed except the newest, which readers that
// follow the log may still read and, after a crash, the runtime may still write.
func planCleanup(base string, names []string, keep int) cleanupPlan {
	var t cleanupPlan
	var rotated []string // oldest first, without .gz
	packed, plain := make(map[string]bool), make(map[string]bool)
	at := make(map[string]time.Time)
	for _, name := range names {
		if strings.HasPrefix(name, base+".") && strings.HasSuffix(name, unfinished) {
			t.broken = append(t.broken, name)
			continue
		}
		when, ok := logpath.RotatedAt(base, name)
		if !ok {
			continue
		}
		bare := strings.TrimSuffix(name, compressed)
		if !packed[bare] && !plain[bare] {
			rotated = append(rotated, bare)
			at[bare] = when
		}
		if bare == name {
			plain[bare] = true
		} else {
			packed[bare] = true
		}
	}
	slices.SortFunc(rotated, func(a, b string) int {
		if byTime := at[a].Compare(at[b]); byTime != 0 {
			return byTime
		}
		return strings.Compare(a, b)
	})
	for i, bare := range rotated {
		left := len(rotated) - i
		switch {
		case left > keep && packed[bare]:
			t.remove = append(t.remove, bare+compressed)
		case left > 1 && left <= keep && !packed[bare]:
			t.compress = append(t.compress, bare)
		}
		// A compressed log is complete, because it is renamed last. Its original would
		// duplicate every line.
		if plain[bare] && (left > keep || packed[bare]) {
			t.remove = append(t.remove, bare)
		}
		t.last = at[bare]
	}
	return t
}

// nextStamp returns a time for a new name that sorts after all others, even if the clock
// was set back.
func nextStamp(last, now time.Time) time.Time {
	if !now.After(last) {
		return last.Add(1)
	}
	return now
}
