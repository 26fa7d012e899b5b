package kubeapi

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	minWatchTime       = 30 * time.Minute // of watches without a timeout; up to twice as long, so that not all end at once
	bookmarkPeriod     = time.Minute
	watchWriteTimeout  = 30 * time.Second
	initialEventsEnded = metav1.InitialEventsAnnotationKey
)

// watchStream is one watch of a client.
type watchStream struct {
	*request
	api      *API
	selector selector
	form     form
	control  *http.ResponseController
	header   bool   // of the table is still to be sent
	version  uint64 // of the last event

	bookmarks bool // are wanted
}

// watch responds with changes until the client or its time ends it.
func (a *API) watch(r *request) error {
	opts, err := r.listOptions(true)
	if err != nil {
		return err
	}
	sel, err := r.selector(opts)
	if err != nil {
		return err
	}
	as, err := r.form()
	if err != nil {
		return err
	}
	after, least, initial, err := watchStart(opts)
	if err != nil {
		return err
	}
	if err := a.refreshNow(r.Context(), r.resource); err != nil {
		return err
	}
	w := &statusWriter{ResponseWriter: r.w}
	done, ok := r.Stream(w)
	if !ok {
		return w.failure("")
	}
	defer done()
	s := &watchStream{request: r, api: a, selector: sel, form: as, control: http.NewResponseController(r.w), header: true, bookmarks: opts.AllowWatchBookmarks}
	s.serve(after, least, initial, watchTimeout(opts.TimeoutSeconds))
	return nil
}

// watchStart returns the version after which a watch begins, 0: now; nil: with all objects, which must be of the version least
// or a later one. initial asks for a bookmark after them.
func watchStart(opts *internalversion.ListOptions) (after *uint64, least uint64, initial bool, err error) {
	n, err := parseVersion(opts.ResourceVersion)
	if err != nil {
		return nil, 0, false, err
	}
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return nil, n, opts.AllowWatchBookmarks, nil
	}
	return &n, 0, false, nil
}

// watchTimeout is the time that a watch lasts.
func watchTimeout(n *int64) time.Duration {
	if n == nil || *n == 0 {
		return minWatchTime + rand.N(minWatchTime) //nolint:gosec // only spreads load
	}
	return time.Duration(min(*n, math.MaxInt32)) * time.Second
}

// serve sends events.
func (s *watchStream) serve(after *uint64, least uint64, initial bool, timeout time.Duration) {
	s.w.Header().Set("Content-Type", "application/json")
	s.w.Header().Set("Cache-Control", "no-cache, private")
	c := s.resource.collection
	w, from, ok := c.watch(after)
	if !ok {
		s.sendError(errExpired("too old resource version: %d (%d)", *after, from.version))
		return
	}
	defer c.unwatch(w)
	if least > from.version {
		s.sendError(errTooLargeVersion(least, from.version))
		return
	}
	if !s.sendStart(from, initial) {
		return
	}
	end, bookmarks := time.NewTimer(timeout), time.NewTicker(bookmarkPeriod)
	defer end.Stop()
	defer bookmarks.Stop()
	for {
		select {
		case <-s.Context().Done():
			return
		case <-end.C:
			return
		case <-bookmarks.C:
			if s.bookmarks && len(w.changes) == 0 && !s.sendBookmark(s.version, false) {
				return
			}
		case ch, ok := <-w.changes:
			if !ok {
				s.sendError(errExpired("too old resource version: the client is too slow for the changes; list again"))
				return
			}
			if !s.sendChange(ch) {
				return
			}
		}
	}
}

// sendStart sends what there is and what was missed.
func (s *watchStream) sendStart(from start, initial bool) bool {
	s.version = from.version
	_ = s.control.Flush() // the status, so that the client knows that it watches
	for _, o := range from.objects {
		if s.selector.matches(o) && !s.send(watch.Added, o) {
			return false
		}
	}
	for _, ch := range from.changes {
		if !s.sendChange(ch) {
			return false
		}
	}
	s.version = from.version
	return !initial || s.sendBookmark(from.version, true)
}

// sendChange sends what a change means for the objects that are selected: one that begins
// to match is added, one that ceases to is deleted.
func (s *watchStream) sendChange(ch change) bool {
	s.version = ch.version
	was := ch.prev != nil && s.selector.matches(ch.prev)
	is := ch.typ != watch.Deleted && s.selector.matches(ch.obj)
	switch {
	case is && was:
		return s.send(watch.Modified, ch.obj)
	case is:
		return s.send(watch.Added, ch.obj)
	case was:
		return s.send(watch.Deleted, withVersion(ch.prev, ch.version))
	}
	return true
}

// sendBookmark sends a version. ended says that all initial objects were sent.
func (s *watchStream) sendBookmark(version uint64, ended bool) bool {
	meta := metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	if ended {
		meta.Annotations = map[string]string{initialEventsEnded: "true"}
	}
	if s.form == asTable {
		t := &metav1.Table{TypeMeta: tableType(), ListMeta: metav1.ListMeta{ResourceVersion: meta.ResourceVersion}}
		return s.write(watch.Bookmark, t)
	}
	kind := metav1.TypeMeta{APIVersion: s.resource.apiVersion(), Kind: s.resource.kind}
	if s.form == asPartial {
		kind = metav1.TypeMeta{APIVersion: metaVersion, Kind: string(asPartial)}
	}
	return s.write(watch.Bookmark, &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: meta})
}

// send sends an object in the form of the client.
func (s *watchStream) send(t watch.EventType, o object) bool {
	v, err := s.as(s.form, o, s.header)
	if err != nil {
		s.sendError(err)
		return false
	}
	s.header = false
	return s.write(t, v)
}

func (s *watchStream) sendError(err error) { _ = s.write(watch.Error, statusOf(err)) }

// write sends one event at once. It returns false if the client is gone.
func (s *watchStream) write(t watch.EventType, v any) bool {
	raw, err := json.Marshal(v)
	if err != nil {
		return false
	}
	b, err := json.Marshal(metav1.WatchEvent{Type: string(t), Object: runtime.RawExtension{Raw: raw}})
	if err != nil {
		return false
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(watchWriteTimeout))
	if _, err = s.w.Write(append(b, '\n')); err != nil {
		return false
	}
	return s.control.Flush() == nil
}
