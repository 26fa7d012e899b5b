package podsource

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podspec"
)

// Cached returns src with a cache on disk: the last Set of src, with its ConfigMaps and
// Secrets, is saved in dir and delivered at the start until src has delivered a Set.
// A node that starts while its server is unavailable thus runs its previous pods.
//
// Until src has delivered a Set that is not Incomplete, the cached Set supplements
// what src delivers. From then on only src counts, and pods that it does not contain
// are removed. Every Set that is not Incomplete is saved; one in which only the course of pods
// has changed, as their status tells it, is saved every ten minutes at most, and at the end. The
// Origin of Manifests is saved, too, so that static pods keep their identity.
//
// The directory must be used by one source in one process at a time. It is created
// with mode 0700 when the source is watched. The file has mode 0600 and contains
// Secrets in plain text. It is replaced atomically and durably, at most once a second,
// and half a minute after that has failed.
// A damaged file is reported as a SourceError and renamed to a name that ends in
// ".damaged". A Set of more than 64 MiB is not saved, which is reported as a
// SourceError, too.
func Cached(src Source, dir string) Source {
	return &cached{src: src, dir: dir, file: cacheFile(filepath.Join(dir, cacheFileName))}
}

const (
	savePeriod      = time.Second      // minimum time between two saves
	saveRetryPeriod = 30 * time.Second // time after which a save that failed is retried
	// statusPeriod is the minimum time after a save for one that is because of statuses alone. All pods are written
	// each time, and the status of one may change every few seconds.
	statusPeriod = 10 * time.Minute
)

// cached is the source that Cached returns.
type cached struct {
	src  Source
	dir  string
	file cacheFile

	mu      sync.Mutex // guards the fields below
	latest  *Set       // last Set of src in this process that was not Incomplete
	savedAt time.Time  // the last save; what is not to be saved now is the same for a start as what was, or is about to be
}

// Unwrap returns the cached source, which decides whether its pods are static.
func (c *cached) Unwrap() Source { return c.src }

// Watch implements Source.
func (c *cached) Watch(ctx context.Context, deliver func(Set)) error {
	w := &cachedWatch{cached: c, deliver: deliver, dirty: make(chan struct{}, 1)}
	w.restore()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.saveAll(ctx) })
	defer wg.Wait() // the last Set is on disk when Watch returns
	defer cancel()
	return c.src.Watch(ctx, w.receive)
}

// cachedWatch is one Watch of a cached source.
type cachedWatch struct {
	*cached
	deliver func(Set)
	dirty   chan struct{} // one slot: cached.latest must be saved

	deliverMu sync.Mutex   // held while a Set is delivered; guards the fields below
	previous  *Set         // from before this Watch, until src has delivered a complete Set
	received  Set          // the last Set of src
	fileErr   *SourceError // of the file
	checksum  string       // of the file
}

// restore loads and delivers the saved Set. If the source was already watched in this
// process, the Set from memory is used instead, which is never older than the file.
func (w *cachedWatch) restore() {
	w.deliverMu.Lock()
	defer w.deliverMu.Unlock()
	w.mu.Lock()
	w.previous = w.latest
	w.mu.Unlock()
	if w.previous != nil {
		return
	}
	err := os.MkdirAll(w.dir, 0o700)
	if err == nil {
		w.previous, w.checksum, err = w.file.load()
	}
	w.received.Incomplete = true
	if err != nil {
		w.fileErr = &SourceError{Location: string(w.file), Err: fmt.Errorf("%w: load cached pods: %w", ErrUnavailable, err)}
	}
	if w.previous != nil || w.fileErr != nil {
		w.deliverLatest()
	}
}

// receive processes a Set of the source.
func (w *cachedWatch) receive(s Set) {
	w.deliverMu.Lock()
	defer w.deliverMu.Unlock()
	w.received = s
	if !s.Incomplete {
		w.previous = nil
		if w.keep(&s) {
			notify.Send(w.dirty)
		}
	}
	w.deliverLatest()
}

// keep keeps the latest Set, and reports whether it is to be saved now.
func (c *cached) keep(s *Set) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	previous := c.latest
	c.latest = s
	return previous == nil || time.Since(c.savedAt) >= statusPeriod || !sameForStart(previous, s)
}

// deliverLatest delivers the last Set, supplemented by the previous one, with the error
// of the file.
// held: w.deliverMu
func (w *cachedWatch) deliverLatest() {
	s := w.received
	if w.previous != nil {
		s = supplement(s, *w.previous)
	}
	if w.fileErr != nil {
		s.Errors = append(append([]SourceError(nil), s.Errors...), *w.fileErr)
	}
	w.deliver(s)
}

// supplement returns an incomplete Set with the pods and objects of previous that it
// does not contain.
func supplement(s, previous Set) Set {
	out := Set{Errors: s.Errors, Incomplete: true, Cached: true}
	out.Pods, out.Objects = append(out.Pods, s.Pods...), append(out.Objects, s.Objects...)
	pods, objects := map[[3]string]bool{}, map[podspec.Ref]bool{}
	for _, m := range s.Pods {
		if m.Pod != nil {
			pods[manifestKey(m.Origin, m.Pod)] = true
		}
	}
	for i := range s.Objects {
		objects[s.Objects[i].Ref] = true
	}
	for _, m := range previous.Pods {
		if m.Pod != nil && !pods[manifestKey(m.Origin, m.Pod)] {
			out.Pods = append(out.Pods, m)
		}
	}
	for _, o := range previous.Objects {
		if !objects[o.Ref] {
			out.Objects = append(out.Objects, o)
		}
	}
	return out
}

// saveAll saves the latest Set whenever it changes or could not be saved, until ctx is
// done, and then once more. It has its own goroutine, so that the source does not wait for the disk.
func (w *cachedWatch) saveAll(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := time.NewTimer(saveRetryPeriod)
	retry.Stop() // until a save fails
	defer retry.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-timer.C:
			select {
			case <-ctx.Done():
				done = true
			case <-w.dirty:
			case <-retry.C:
			}
		}
		w.mu.Lock()
		latest := w.latest
		w.savedAt = time.Now()
		w.mu.Unlock()
		if latest == nil {
			continue
		}
		sum, err := w.file.save(latest, w.checksum)
		w.handleSaved(sum, err, done)
		if retry.Stop(); err != nil {
			retry.Reset(saveRetryPeriod)
		}
		timer.Reset(savePeriod)
	}
}

// handleSaved records the result of a save and delivers the Set again if the error of
// the file has changed. Nothing is delivered after the last save.
func (w *cachedWatch) handleSaved(sum string, err error, last bool) {
	w.deliverMu.Lock()
	defer w.deliverMu.Unlock()
	previous := w.fileErr
	w.fileErr, w.checksum = nil, sum
	if err != nil {
		w.fileErr = &SourceError{Location: string(w.file), Err: fmt.Errorf("save pods of the source: %w", err)}
	}
	if last || previous == nil && err == nil || previous != nil && err != nil && previous.Err.Error() == w.fileErr.Err.Error() {
		return
	}
	w.deliverLatest()
}
