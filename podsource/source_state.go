package podsource

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// sourceState is what one source wants, made fit to be handed out. It is read-only
// once made; nothing in this file does I/O.
type sourceState struct {
	source   string
	static   bool // its pods are
	received bool
	complete bool // all that it wants is known, but for names in held
	cached   bool // it has not spoken: this is what it said to a former process

	entries       []*entry   // valid pods in the source's order, those kept on at the end
	manifests     []Manifest // what the source handed over; of that
	byManifest    []*entry   // came these, of each manifest the one in its place
	bad           map[*corev1.Pod]*entry
	objects       []podspec.Object
	errors        []SourceError   // the source's own and those of invalid pods
	reservedNames map[string]bool // full names of pods that were never valid here
	synced        bool            // complete and without held names once; see hold
}

// entry is one manifest, worked out.
type entry struct {
	raw    *corev1.Pod // as the source handed it over
	origin string
	source string
	pod    *corev1.Pod // with identity and defaults
	refs   []podspec.Ref
	full   string
	err    error // the pod is invalid
}

// update works out what a source wants that wanted d before.
func (d *sourceState) update(s Set, nodeName string, now time.Time) *sourceState {
	next := &sourceState{
		source: d.source, static: d.static, received: true, complete: d.complete || !s.Incomplete,
		cached: s.Cached, objects: s.Objects, bad: map[*corev1.Pod]*entry{}, reservedNames: map[string]bool{},
		manifests: s.Pods, byManifest: make([]*entry, len(s.Pods)),
	}
	head, tail := d.unchanged(s.Pods)
	copy(next.byManifest, d.byManifest[:head])
	copy(next.byManifest[len(next.byManifest)-tail:], d.byManifest[len(d.byManifest)-tail:])
	former := index(d, head, tail)
	for i := head; i < len(s.Pods)-tail; i++ {
		m := s.Pods[i]
		e := former.raw[m.Pod]
		if e == nil || e.origin != m.Origin {
			e = former.findEqual(m)
		}
		if e == nil {
			e = former.reuse(prepare(m, d.source, nodeName), d, now)
		}
		next.byManifest[i] = e
		if e.err != nil {
			next.bad[m.Pod] = e
		}
	}
	next.entries = next.byManifest
	if len(next.bad) > 0 {
		next.entries = slices.DeleteFunc(slices.Clone(next.byManifest), func(e *entry) bool { return e.err != nil })
	}
	next.retainLastGood(d)
	next.reserveInvalid(d)
	next.collectErrors(d, s, now)
	return next
}

// unchanged returns how many manifests at the beginning and at the end are those
// that were there before, so that a change of a few among many costs little. As
// long as anything was invalid, all are looked at.
func (d *sourceState) unchanged(pods []Manifest) (head, tail int) {
	if len(d.bad) > 0 || len(d.entries) != len(d.byManifest) {
		return 0, 0
	}
	return commonEnds(d.manifests, pods)
}

// commonEnds returns how many elements two slices have in common at their beginnings
// and, of the rest, at their ends.
func commonEnds[T comparable](a, b []T) (head, tail int) {
	n := min(len(a), len(b))
	for head < n && a[head] == b[head] {
		head++
	}
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

// reserveInvalid notes the names of invalid pods that have no version to keep: one may run
// here from before this process. Once all that the source wants was known, every
// pod of it that ran and was not wanted had its end coming, and nothing needs to
// be held any more.
func (d *sourceState) reserveInvalid(former *sourceState) {
	wanted := make(map[string]bool)
	if len(d.bad) > 0 && !former.synced {
		for _, e := range d.entries {
			wanted[e.full] = true
		}
		for _, e := range d.bad {
			if e.pod != nil && !wanted[e.full] {
				d.reservedNames[e.full] = true
			}
		}
	}
	d.synced = former.synced || d.complete && len(d.reservedNames) == 0
}

// previousEntries finds entries again.
type previousEntries struct {
	entries []*entry // those valid
	raw     map[*corev1.Pod]*entry
	// Made when the first pod is not found by its pointer.
	uid  map[types.UID]*entry
	name map[[3]string]*entry // of those valid, by origin and name as written
}

// index finds the entries of d but for those of its manifests at the beginning and
// at the end that did not change.
func index(d *sourceState, head, tail int) previousEntries {
	f := previousEntries{entries: d.entries[head : len(d.entries)-tail]}
	f.raw = make(map[*corev1.Pod]*entry, len(f.entries))
	for _, e := range f.entries {
		f.raw[e.raw] = e
	}
	maps.Copy(f.raw, d.bad)
	return f
}

func (f *previousEntries) fill() {
	if f.uid != nil {
		return
	}
	f.uid, f.name = make(map[types.UID]*entry, len(f.entries)), make(map[[3]string]*entry, len(f.entries))
	for _, e := range f.entries {
		f.uid[e.pod.UID], f.name[named(e.origin, e.raw)] = e, e
	}
}

func named(origin string, pod *corev1.Pod) [3]string {
	name := nameInManifest(pod)
	return [3]string{origin, name[0], name[1]}
}

// findEqual finds the entry of a pod that says the same behind another pointer. To
// compare is several times faster than to work it out again.
func (f *previousEntries) findEqual(m Manifest) *entry {
	f.fill()
	if m.Pod == nil {
		return nil
	}
	e := f.name[named(m.Origin, m.Pod)]
	if e == nil || !equal(e.raw, m.Pod) {
		return nil
	}
	same := *e
	same.raw = m.Pod
	return &same
}

// reuse gives a valid entry what stays the same of the pod from before: when it
// was first seen and, if nothing else is new, the pod itself.
func (f *previousEntries) reuse(e *entry, d *sourceState, now time.Time) *entry {
	if e.err != nil {
		return e
	}
	f.fill()
	was := f.uid[e.pod.UID]
	if was != nil {
		seen := was.pod.Annotations[podspec.AnnotationFirstSeen]
		if e.pod.Annotations == nil {
			e.pod.Annotations = map[string]string{}
		}
		e.pod.Annotations[podspec.AnnotationFirstSeen] = seen
	}
	podspec.AnnotateSource(e.pod, d.source, now)
	podspec.MarkStatic(e.pod, d.static)
	if was != nil && equal(was.pod, e.pod) {
		e.pod = was.pod
	}
	return e
}

// prepare gives a pod its identity and defaults, and finds all that is wrong.
func prepare(m Manifest, source, nodeName string) *entry {
	e := &entry{raw: m.Pod, origin: m.Origin, source: source}
	if m.Pod == nil {
		e.err = errors.New("nil pod")
		return e
	}
	pod := m.Pod.DeepCopy()
	var errs []error
	if m.Origin != "" {
		// What only an API server or this agent may say of a pod.
		for _, key := range []string{podspec.AnnotationMirror, podspec.AnnotationFirstSeen} {
			delete(pod.Annotations, key)
		}
		podspec.AssignStaticIdentity(pod, nodeName, source, m.Origin)
	} else if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	podspec.Default(pod)
	if pod.UID == "" {
		errs = append(errs, errors.New("metadata.uid: required"))
	}
	errs = append(errs, podspec.Validate(pod))
	if m.Origin != "" {
		if bad := podspec.Unsupported(pod); len(bad) > 0 {
			errs = append(errs, bad.ToAggregate())
		}
	}
	e.pod, e.full, e.err = pod, podspec.FullName(pod), errors.Join(errs...)
	if e.err != nil {
		return e
	}
	for _, ref := range podspec.ObjectRefs(pod) {
		e.refs = append(e.refs, ref.Ref)
	}
	return e
}

// retainLastGood takes over the valid pods of the former state that may still be wanted,
// if only their manifest were valid again: for an origin with an invalid pod, all
// that its valid pods do not replace; for a pod with an identity of its own, the
// one of that identity.
func (d *sourceState) retainLastGood(former *sourceState) {
	if len(d.bad) == 0 {
		return
	}
	origins, uids := map[string]bool{}, map[types.UID]bool{}
	for _, e := range d.bad {
		switch {
		case e.origin != "":
			origins[e.origin] = true
		case e.pod != nil:
			uids[e.pod.UID] = true
		}
	}
	replaced, valid := map[[2]string]bool{}, map[types.UID]bool{}
	for _, e := range d.entries {
		replaced[[2]string{e.origin, e.full}], valid[e.pod.UID] = true, true
	}
	for _, e := range former.entries {
		at := e.origin != "" && origins[e.origin] && !replaced[[2]string{e.origin, e.full}]
		if (at || e.origin == "" && uids[e.pod.UID]) && !valid[e.pod.UID] {
			d.entries = append(d.entries, e)
		}
	}
}

// collectErrors lists what is wrong.
func (d *sourceState) collectErrors(former *sourceState, s Set, now time.Time) {
	if len(d.bad) == 0 && len(s.Errors) == 0 {
		return
	}
	byRaw, byFull, byOrigin := map[*corev1.Pod]*corev1.Pod{}, map[string]*corev1.Pod{}, map[string][]*corev1.Pod{}
	fresh := make(map[*corev1.Pod]bool, len(s.Pods))
	for _, m := range s.Pods {
		fresh[m.Pod] = true
	}
	for _, e := range d.entries {
		byRaw[e.raw], byFull[e.full] = e.pod, e.pod
		if !fresh[e.raw] {
			byOrigin[e.origin] = append(byOrigin[e.origin], e.pod)
		}
	}
	for _, f := range s.Errors {
		f.RetainedPod = byRaw[f.RetainedPod] // the source knows it without its identity
		if f.Since.IsZero() {
			f.Since = now
		}
		d.errors = append(d.errors, f)
	}
	for _, m := range s.Pods {
		e := d.bad[m.Pod]
		if e == nil {
			continue
		}
		f := SourceError{Location: e.origin, Err: e.err, Since: now}
		if f.Location == "" {
			f.Location = d.source
		}
		if e.pod != nil {
			f.Err = fmt.Errorf("pod %s/%s is invalid: %w", m.Pod.Namespace, m.Pod.Name, e.err)
			if m.Pod.Namespace == "" {
				f.Err = fmt.Errorf("pod %s is invalid: %w", m.Pod.Name, e.err)
			}
			f.RetainedPod = byFull[e.full]
		}
		if kept := byOrigin[e.origin]; f.RetainedPod == nil && e.origin != "" && len(kept) == 1 {
			f.RetainedPod = kept[0]
		}
		d.errors = append(d.errors, f)
	}
	sameSince(d.errors, former.errors)
}
