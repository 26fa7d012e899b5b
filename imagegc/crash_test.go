package imagegc_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// IG-1: a runtime lists an image by its id alone before its pull is over, and
// tells the names later, by which it is leased.
func TestCollector_KeepsUntaggedImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MinAge: -1}})
		id := s.pull("app", 10)
		names := s.tags[id]
		s.tags[id] = nil
		require.NoError(t, c.Lease(t.Context(), "pod", names))
		_, err := c.DeleteUnused(t.Context())
		require.NoError(t, err)
		choices, err := c.Explain(t.Context(), true)
		require.NoError(t, err)
		assert.Equal(t, imagegc.ReasonUntagged, choices[0].Reason)
		s.tags[id] = names
		time.Sleep(time.Hour)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Empty(t, s.removed, "it is leased")

		// One that never gets a name is what a removal left that broke off.
		s.tags[id] = nil
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Empty(t, s.removed, "it had a name before")
		time.Sleep(time.Minute)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{id}, s.removed)
	})
}

// IG-1: what an image is called is looked at again right before it goes.
func TestCollector_KeepsImageThatGetsLeasedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s})
		first, second, third := s.pull("a", 10), s.pull("b", 10), s.pull("c", 10)
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, c.Lease(t.Context(), "pod", []string{"reg.io/late:1"}))
		s.onRemove = func(string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tags[second] = append(s.tags[second], "reg.io/late:1")
			s.pinned[third] = true
		}
		result, err := c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{first}, s.removed)
		assert.Len(t, result.Removed, 1)
	})
}

// crashingRuntime is a store whose caller dies in a removal: before it had its effect, or
// after. As every goroutine of a process ends where it is, so does the caller.
type crashingRuntime struct {
	*store

	calls, at int
	after     bool
}

func (d *crashingRuntime) RemoveImage(ctx context.Context, id string) error {
	if d.calls++; d.calls != d.at {
		return d.store.RemoveImage(ctx, id)
	}
	if d.after {
		_ = d.store.RemoveImage(ctx, id)
	}
	goruntime.Goexit()
	return nil
}

// IG-1, IG-3: killed in any removal, a collection is taken up by the next process,
// which knows the ages, goes on in the same order, and removes no more than it
// takes, and nothing again.
func TestCollector_AfterCrash(t *testing.T) {
	for at := range 4 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after it: %v", at+1, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore(10_000)
					s.layers["base"] = 100
					cfg := imagegc.Config{Images: s, RecordsFile: t.TempDir() + "/ages"}
					var ids []string
					for i := range 8 {
						ids = append(ids, s.pull(fmt.Sprint("app", 7-i), 100, "base"))
						_, err := collector(t, cfg).Collect(t.Context())
						require.NoError(t, err)
						time.Sleep(time.Minute)
					}
					time.Sleep(time.Minute)
					require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(cfg.RecordsFile), ".ages.123"), []byte("half"), 0o600))
					s.capacity = 800 // 900 are in use: three go until there are 640 at most
					cfg.Images = &crashingRuntime{store: s, at: at + 1, after: after}
					died := true
					done := make(chan struct{})
					go func() {
						defer close(done)
						_, _ = collector(t, cfg).Collect(t.Context())
						died = false
					}()
					<-done
					require.Equal(t, at < 3, died)
					cfg.Images = s
					cfg.Hooks.Removed = func(_ runtime.Image, _ imagegc.Reason, _ time.Duration, err error) { assert.NoError(t, err) }
					_, err := collector(t, cfg).Collect(t.Context())
					require.NoError(t, err)
					assert.Equal(t, ids[:3], s.removed, "the least recently used, each once")
					left, err := os.ReadDir(filepath.Dir(cfg.RecordsFile))
					require.NoError(t, err)
					assert.Len(t, left, 1, "and what was half written is gone")
				})
			})
		}
	}
}

// IG-3: with a file truncated at any byte, a collector starts, reports the loss, and
// does not remove an image with a lost record earlier than a new one.
func TestCollector_ReadsTruncatedRecords(t *testing.T) {
	var content []byte
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ages")
		_, err := collector(t, imagegc.Config{Images: threeImages(), RecordsFile: path}).Collect(t.Context())
		require.NoError(t, err)
		content, err = os.ReadFile(path)
		require.NoError(t, err)
	})
	dir := t.TempDir()
	for n := range len(content) + 1 {
		synctest.Test(t, func(t *testing.T) { cutAt(t, filepath.Join(dir, fmt.Sprint(n)), content, n) })
	}
}

func threeImages() *store {
	s := newStore(1000)
	for i := range 3 {
		s.pull(fmt.Sprint("app", i), 100)
	}
	return s
}

func cutAt(t *testing.T, path string, content []byte, n int) {
	time.Sleep(6 * time.Hour) // the clock starts again in each bubble
	s := threeImages()
	all := s.ids()
	var good, lost []string
	for _, id := range all {
		at := bytes.Index(content, []byte(id))
		end := at + bytes.IndexByte(content[at:], '\n') // the line feed itself may be missing
		if n >= end {
			good = append(good, id)
		} else {
			lost = append(lost, id)
		}
	}
	require.NoError(t, os.WriteFile(path, content[:n], 0o600))
	reported := 0
	c := collector(t, imagegc.Config{Images: s, RecordsFile: path, Policy: imagegc.Policy{MaxAge: 3 * time.Hour}, Hooks: imagegc.Hooks{
		RecordsLost: func(err error) { require.ErrorIs(t, err, imagegc.ErrImageRecords); reported++ },
	}})
	_, err := c.Collect(t.Context())
	require.NoError(t, err)
	require.Equal(t, len(lost) > 0, reported == 1, "cut at %d", n)
	require.Equal(t, lost, s.ids(), "cut at %d: those of %v are over their age", n, good)

	reasons := func(all bool) (r []imagegc.Reason) {
		choices, err := c.Explain(t.Context(), all)
		require.NoError(t, err)
		for _, ch := range choices {
			r = append(r, ch.Reason)
		}
		return r
	}
	want := func(r imagegc.Reason) (all []imagegc.Reason) {
		for range lost {
			all = append(all, r)
		}
		return all
	}
	time.Sleep(2*time.Minute - time.Second)
	require.Equal(t, want(imagegc.ReasonMinAge), reasons(true), "cut at %d", n)
	time.Sleep(2 * time.Second)
	require.Equal(t, want(imagegc.ReasonUnused), reasons(true), "cut at %d", n)
	require.Equal(t, want(imagegc.ReasonNotNeeded), reasons(false), "cut at %d", n)
	time.Sleep(3 * time.Hour)
	require.Equal(t, want(imagegc.ReasonMaxAge), reasons(false), "cut at %d", n)
}
