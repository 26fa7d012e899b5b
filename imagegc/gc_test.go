package imagegc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// store is an image store whose images are made of layers that they share: an
// image's size is that of all its layers, and removing it frees those that no
// other image has.
type store struct {
	mu       sync.Mutex
	layers   map[string]uint64
	images   map[string][]string // layers by image id
	tags     map[string][]string
	pinned   map[string]bool
	inUse    []string // names or ids of images
	capacity uint64
	unpacked uint64           // what an image takes beside its size, in bytes
	slow     time.Duration    // that a removal takes
	fail     map[string]error // of removals
	listErr  error
	removed  []string
	onRemove func(id string)
}

func newStore(capacity uint64) *store {
	return &store{
		layers: map[string]uint64{}, images: map[string][]string{}, tags: map[string][]string{}, pinned: map[string]bool{},
		fail: map[string]error{}, capacity: capacity,
	}
}

// pull adds an image of one layer of its own, and of shared ones.
func (s *store) pull(name string, size uint64, shared ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := "sha256:" + strings.ToLower(fmt.Sprintf("%x", name))
	s.layers[name] = size
	s.images[id] = append([]string{name}, shared...)
	s.tags[id] = []string{"reg.io/" + name + ":1"}
	return id
}

func (s *store) Images(context.Context) ([]runtime.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []runtime.Image
	for id, layers := range s.images {
		im := runtime.Image{ID: id, Tags: s.tags[id], Pinned: s.pinned[id]}
		for _, l := range layers {
			im.Bytes += s.layers[l]
		}
		out = append(out, im)
	}
	return out, s.listErr
}

func (s *store) RemoveImage(_ context.Context, id string) error {
	s.mu.Lock()
	slow, err, hook := s.slow, s.fail[id], s.onRemove
	s.mu.Unlock()
	if hook != nil {
		hook(id)
	}
	if slow > 0 {
		time.Sleep(slow)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.images[id]; !ok {
		return runtime.ErrNotFound
	}
	delete(s.images, id)
	s.removed = append(s.removed, id)
	return nil
}

func (s *store) used() uint64 {
	kept := map[string]bool{}
	for _, layers := range s.images {
		for _, l := range layers {
			kept[l] = true
		}
	}
	var used uint64
	for l := range kept {
		used += s.layers[l]
	}
	return used + uint64(len(s.images))*s.unpacked
}

func (s *store) ImageFS(context.Context) (images, containers []runtime.FSUsage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []runtime.FSUsage{{CapacityBytes: s.capacity, AvailableBytes: s.capacity - min(s.used(), s.capacity)}}, nil, nil
}

func (s *store) ImagesInUse(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.inUse), nil
}

// run adds a container of an image, under a name for it.
func (s *store) run(image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse = append(s.inUse, image)
}

func (s *store) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.images))
}

type fakeRecorder struct{ events []*corev1.Event }

func (r *fakeRecorder) Record(e *corev1.Event) { r.events = append(r.events, e) }

func collector(t *testing.T, cfg imagegc.Config) *imagegc.Collector {
	t.Helper()
	c, err := imagegc.New(cfg)
	require.NoError(t, err)
	return c
}

// IG-1
func TestCollector_RemovesLeastRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s})
		var ids []string
		for i := range 9 { // each a minute after the former: the first is used least recently
			ids = append(ids, s.pull(fmt.Sprint("app", i), 100))
			_, err := c.Collect(t.Context())
			require.NoError(t, err)
			if i < 8 {
				time.Sleep(time.Minute)
			}
		}
		require.Len(t, s.removed, 1, "the ninth reached 85 %")
		assert.Equal(t, ids[:1], s.removed, "the oldest went, and no more than it takes to get to 80 %")
		s.run("reg.io/app1:1")
		s.pull("big", 100)
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{ids[0], ids[2]}, s.removed, "app1 is in use")
	})
}

// Another policy holds for the next collection.
func TestCollector_SetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s})
		for i := range 6 {
			s.pull(fmt.Sprint("app", i), 100)
		}
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		require.Empty(t, s.removed, "60 % of the disk")
		time.Sleep(time.Hour)
		require.ErrorContains(t, c.SetPolicy(imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 60}), "must be below HighThresholdPercent 50")
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		require.Empty(t, s.removed, "an invalid policy changes nothing")
		require.NoError(t, c.SetPolicy(imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 40}))
		plan, err := c.Explain(t.Context(), false)
		require.NoError(t, err)
		assert.Len(t, slices.DeleteFunc(plan, func(d imagegc.Decision) bool { return !d.Remove }), 2)
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		assert.Len(t, s.removed, 2)
		require.NoError(t, c.SetPolicy(imagegc.Policy{}))
		s.pull("big", 400)
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		assert.Len(t, s.removed, 2, "the default again")
	})
}

// IG-1
func TestCollector_KeepsImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(100)
		c := collector(t, imagegc.Config{Images: s, KeepImages: []string{"reg.io/pause:1"}})
		s.pull("pause", 10)
		s.pinned[s.pull("pinned", 10)] = true
		s.pull("used", 10)
		s.run("reg.io/used:1")
		byID := s.pull("byid", 10)
		s.run(byID)
		s.pull("leased", 10)
		require.NoError(t, c.Lease(t.Context(), "pod", []string{"reg.io/leased:1"}))
		s.pull("free", 40)
		_, err := c.Collect(t.Context()) // seen for the first time: too young
		var short *imagegc.InsufficientSpaceError
		require.ErrorAs(t, err, &short)
		assert.Empty(t, s.removed)
		time.Sleep(3 * time.Minute)
		young := s.pull("young", 10)

		choices, err := c.Explain(t.Context(), false)
		require.NoError(t, err)
		reasons := map[imagegc.Reason]int{}
		for _, ch := range choices {
			reasons[ch.Reason]++
		}
		assert.Equal(t, map[imagegc.Reason]int{
			imagegc.ReasonConfigured: 1, imagegc.ReasonPinned: 1, imagegc.ReasonInUse: 2, imagegc.ReasonLeased: 1, imagegc.ReasonMinAge: 1, imagegc.ReasonDiskUsage: 1,
		}, reasons, "a dry run says why")
		assert.Empty(t, s.removed, "and does nothing")

		result, err := c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(40), result.BytesFreed)
		assert.Len(t, s.ids(), 6)
		assert.Contains(t, s.ids(), young)

		c.Release("pod")
		time.Sleep(3 * time.Minute)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Len(t, s.ids(), 4, "what was leased and what was young may go now")
	})
}

// IG-1, IG-5: sizes share layers; the file system says when it is enough.
func TestCollector_MeasuresFreedSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1_000_000)
		s.layers["base"] = 600
		c := collector(t, imagegc.Config{Images: s})
		var ids []string
		for i := range 6 {
			ids = append(ids, s.pull(fmt.Sprint("app", i), 50, "base"))
			_, err := c.Collect(t.Context())
			require.NoError(t, err)
			time.Sleep(time.Minute)
		}
		s.capacity = 1000
		time.Sleep(time.Minute)
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(100), result.BytesToFree)
		assert.Equal(t, uint64(100), result.BytesFreed, "by their sizes one image would have done")
		assert.Equal(t, ids[:2], s.removed)
	})
}

// IG-5: what runtimes tell is often the size of the packed layers; then fewer
// images do than their sizes say.
func TestCollector_RemovesNoMoreThanNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1_000_000)
		s.unpacked = 90
		c := collector(t, imagegc.Config{Images: s})
		for i := range 9 {
			s.pull(fmt.Sprint("app", i), 10)
		}
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		s.capacity = 1000
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(100), result.BytesToFree)
		assert.Len(t, result.Removed, 1)
	})
}

// IG-1, IG-2: if the removal of old images brings the usage below the high threshold, no other one is removed.
func TestCollector_MaxAgeIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MaxAge: 24 * time.Hour}})
		old := s.pull("old", 40)
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(24 * time.Hour)
		s.pull("new", 700)
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		s.pull("late", 140)
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{old}, s.removed)
		assert.Zero(t, result.BytesToFree)
	})
}

// IG-2
func TestCollector_MaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1_000_000)
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MaxAge: 24 * time.Hour}})
		old := s.pull("old", 1)
		s.pull("used", 1)
		s.run("reg.io/used:1")
		for range 24 {
			_, err := c.Collect(t.Context())
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		assert.Empty(t, s.removed)
		time.Sleep(time.Second)
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{old}, s.removed)
	})
}

// IG-3
func TestCollector_RecordsSurviveRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1_000_000)
		cfg := imagegc.Config{Images: s, RecordsFile: t.TempDir() + "/ages", Policy: imagegc.Policy{MaxAge: 24 * time.Hour}}
		old := s.pull("old", 1)
		_, err := collector(t, cfg).Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(23 * time.Hour)
		young := s.pull("young", 1)
		_, err = collector(t, cfg).Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(2 * time.Hour)
		_, err = collector(t, cfg).Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{old}, s.removed)
		assert.Equal(t, []string{young}, s.ids())
	})
}

// IG-4
func TestCollector_InsufficientSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		rec := &fakeRecorder{}
		c := collector(t, imagegc.Config{Images: s, Recorder: rec, NodeName: "n1"})
		s.pull("used", 800)
		s.run("reg.io/used:1")
		s.pull("free", 100)
		_, err := c.Collect(t.Context())
		require.Error(t, err)
		time.Sleep(5 * time.Minute)
		s.pull("more", 90)
		_, err = c.Collect(t.Context())
		var short *imagegc.InsufficientSpaceError
		require.ErrorAs(t, err, &short)
		assert.Equal(t, imagegc.InsufficientSpaceError{BytesToFree: 190, BytesFreed: 100}, *short)
		require.Len(t, rec.events, 2)
		e := rec.events[1]
		assert.Equal(t, "FreeDiskSpaceFailed", e.Reason)
		assert.Equal(t, "Node n1", e.InvolvedObject.Kind+" "+e.InvolvedObject.Name)
		assert.Contains(t, e.Message, "freed 100 of 190 bytes")
	})
}

// IG-5
func TestCollector_ContinuesAfterFailedRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s})
		bad := s.pull("a", 100)
		boom := errors.New("boom")
		s.fail[bad] = boom
		s.fail[s.pull("gone", 100)] = runtime.ErrNotFound
		s.pull("c", 100)
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		result, err := c.DeleteUnused(t.Context())
		require.ErrorIs(t, err, boom)
		assert.ErrorContains(t, err, bad, "the error says which")
		require.NotErrorIs(t, err, runtime.ErrNotFound, "gone by itself is gone")
		assert.Len(t, result.Removed, 2)
		require.ErrorIs(t, c.Reclaim(t.Context()), boom)
	})
}

func TestCollector_RemovesNothingWithoutList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		c := collector(t, imagegc.Config{Images: s})
		s.pull("a", 10)
		_, _ = c.Collect(t.Context())
		time.Sleep(time.Hour)
		s.listErr = runtime.ErrUnavailable
		_, err := c.Collect(t.Context())
		require.ErrorIs(t, err, runtime.ErrUnavailable)
		assert.Empty(t, s.removed)
	})
}

func TestCollector_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		ctx, cancel := context.WithCancel(t.Context())
		rounds := 0
		c := collector(t, imagegc.Config{Images: s, RecordsFile: t.TempDir() + "/ages", Hooks: imagegc.Hooks{
			Collected: func(imagegc.Result, error) { rounds++ },
		}})
		s.pull("a", 900)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		assert.Equal(t, 3, rounds)
		assert.Empty(t, s.ids(), "taken at the second look")
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := imagegc.New(imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 60, MaxAge: time.Second}, Period: -1})
	require.Error(t, err)
	for _, want := range []string{"Config.Images required", "LowThresholdPercent 60", "MaxAge 1s", "SourcesTimeout must not be negative"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestImageRefs(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Image: "a"}}, Containers: []corev1.Container{{Image: "b"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "c"}}},
		Volumes:             []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "d"}}}},
	}}
	assert.Equal(t, []string{"a", "b", "c", "d"}, imagegc.ImageRefs(pod))
}
