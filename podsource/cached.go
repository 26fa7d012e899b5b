package podsource

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// Cached returns src with a memory: what it said last is kept in dir, with its
// ConfigMaps and Secrets, and handed over at the start for as long as src has not
// spoken. So a node that starts while its server is away runs the pods that it had.
//
// Until src has handed over its first Set that is not Incomplete, what it cannot
// tell of is held to as it was. Then src alone counts: a pod that it does not name
// ends. What src says from then on is kept as it comes, but for Sets that are
// Incomplete. The Origin of Manifests is kept too, so that static pods have the
// same identity.
//
// The directory belongs to this source alone, and to one process at a time. It is
// made, with mode 0700, when the source is watched. Its file has mode 0600 and
// holds Secrets as they are: who can read the disk can read them. It is replaced
// as a whole, at most once a second, and lasts through a power cut. A file that was
// cut or changed is told as a Fault and set aside under a name that ends in
// ".damaged". Sets of more than 64 MiB are not kept, which is told as a Fault too.
func Cached(src Source, dir string) Source {
	return &cached{src: src, dir: dir, file: cacheFile(filepath.Join(dir, cacheFileName))}
}

// saveEvery bounds how often the file of a source that never rests is written.
const saveEvery = time.Second

// cached is the source that Cached returns.
type cached struct {
	src  Source
	dir  string
	file cacheFile

	mu    sync.Mutex // guards heard
	heard *Set       // the newest Set of src in this process that was not Incomplete
}

// Unwrap returns the source that is cached, which says whether its pods are static.
func (c *cached) Unwrap() Source { return c.src }

// Watch fulfils Source.
func (c *cached) Watch(ctx context.Context, hand func(Set)) error {
	w := &cachedWatch{cached: c, hand: hand, dirty: make(chan struct{}, 1)}
	w.begin()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.saveAll(ctx) })
	defer wg.Wait() // what was said last is on disk when Watch returns
	defer cancel()
	return c.src.Watch(ctx, w.take)
}

// cachedWatch is one Watch of a cached source.
type cachedWatch struct {
	*cached
	hand  func(Set)
	dirty chan struct{} // one slot: heard is to be saved

	turn   sync.Mutex   // held while a Set is handed over; guards what follows
	before *Set         // what src said before this Watch, as long as it has not spoken in it
	latest Set          // what src said last
	fault  *SourceError // of the file
	saved  string       // checksum of what the file holds
}

// begin hands over what was said before. A source that is watched once more in
// one process was heard by it: the file may be older than that, and what is wanted
// stays by itself.
func (w *cachedWatch) begin() {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.mu.Lock()
	w.before = w.heard
	w.mu.Unlock()
	if w.before != nil {
		return
	}
	err := os.MkdirAll(w.dir, 0o700)
	if err == nil {
		w.before, w.saved, err = w.file.load()
	}
	w.latest.Incomplete = true
	if err != nil {
		w.fault = &SourceError{Location: string(w.file), Err: fmt.Errorf("%w: restore what it said last: %w", ErrUnavailable, err)}
	}
	if w.before != nil || w.fault != nil {
		w.handOver()
	}
}

// take takes what the source says.
func (w *cachedWatch) take(s Set) {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.latest = s
	if !s.Incomplete {
		w.before = nil
		w.mu.Lock()
		w.heard = &s
		w.mu.Unlock()
		select {
		case w.dirty <- struct{}{}:
		default:
		}
	}
	w.handOver()
}

// handOver hands over what the source said last with what it could not tell of,
// and what is wrong with the file. The caller holds turn.
func (w *cachedWatch) handOver() {
	s := w.latest
	if w.before != nil {
		s = completed(s, *w.before)
	}
	if w.fault != nil {
		s.Errors = append(append([]SourceError(nil), s.Errors...), *w.fault)
	}
	w.hand(s)
}

// completed is an incomplete Set with all of the one before it that it does not name.
func completed(s, before Set) Set {
	out := Set{Errors: s.Errors, Incomplete: true, Cached: true}
	out.Pods, out.Objects = append(out.Pods, s.Pods...), append(out.Objects, s.Objects...)
	pods, objects := map[[3]string]bool{}, map[podspec.Ref]bool{}
	for _, m := range s.Pods {
		if m.Pod != nil {
			pods[named(m.Origin, m.Pod)] = true
		}
	}
	for i := range s.Objects {
		objects[s.Objects[i].Ref] = true
	}
	for _, m := range before.Pods {
		if m.Pod != nil && !pods[named(m.Origin, m.Pod)] {
			out.Pods = append(out.Pods, m)
		}
	}
	for _, o := range before.Objects {
		if !objects[o.Ref] {
			out.Objects = append(out.Objects, o)
		}
	}
	return out
}

// saveAll saves what was heard last until ctx ends, and what is left then. It runs
// beside the source, which need not wait for the disk.
func (w *cachedWatch) saveAll(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-rest.C:
			select {
			case <-ctx.Done():
				done = true
			case <-w.dirty:
			}
		}
		w.mu.Lock()
		heard := w.heard
		w.mu.Unlock()
		if heard == nil {
			continue
		}
		sum, err := w.file.save(heard, w.saved)
		w.saveEnded(sum, err, done)
		rest.Reset(saveEvery)
	}
}

// saveEnded takes what a save came to, and tells when something else is wrong with
// the file than before. Once the Watch is ending nobody is told.
func (w *cachedWatch) saveEnded(sum string, err error, ending bool) {
	w.turn.Lock()
	defer w.turn.Unlock()
	was := w.fault
	w.fault, w.saved = nil, sum
	if err != nil {
		w.fault = &SourceError{Location: string(w.file), Err: fmt.Errorf("keep what the source says: %w", err)}
	}
	if ending || was == nil && err == nil || was != nil && err != nil && was.Err.Error() == w.fault.Err.Error() {
		return
	}
	w.handOver()
}
