package podsource

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podspec"
)

// sourceState is the processed desired set of one source. It is read-only once made;
// nothing in this file does I/O.
type sourceState struct {
	source   string
	static   bool // its pods are static
	podsOnly bool // it never has objects
	// unsupported returns the fields of a static pod that the node does not support.
	unsupported func(*corev1.Pod) field.ErrorList
	received    bool
	complete    bool // all desired pods are known, except those in reservedNames
	cached      bool // the set was saved by a previous process

	entries       []*entry   // valid pods in the order of the source, retained ones, invalid ones to be rejected
	manifests     []Manifest // as delivered by the source
	byManifest    []*entry   // the entry of each manifest, by index
	bad           map[*corev1.Pod]*entry
	objects       []podspec.Object
	errors        []SourceError   // errors of the source and of invalid pods
	reservedNames map[string]bool // full names of pods that were never valid here
	synced        bool            // was complete without reserved names once; see reserveInvalid
}

// entry is one processed manifest.
type entry struct {
	raw    *corev1.Pod // as delivered by the source
	origin string
	source string
	pod    *corev1.Pod // with identity and defaults
	refs   []podspec.Ref
	full   string
	err    error // the pod is invalid
}

// update returns the state for the next Set of the source; d is its previous state.
func (d *sourceState) update(s Set, nodeName string, now time.Time) *sourceState {
	next := &sourceState{
		source: d.source, unsupported: d.unsupported, static: d.static, podsOnly: d.podsOnly, received: true, complete: d.complete || !s.Incomplete,
		cached: s.Cached, objects: s.Objects, bad: map[*corev1.Pod]*entry{}, reservedNames: map[string]bool{},
		manifests: s.Pods, byManifest: make([]*entry, len(s.Pods)),
	}
	head, tail := d.unchanged(s.Pods)
	copy(next.byManifest, d.byManifest[:head])
	copy(next.byManifest[len(next.byManifest)-tail:], d.byManifest[len(d.byManifest)-tail:])
	previous := index(d, head, tail)
	for i := head; i < len(s.Pods)-tail; i++ {
		m := s.Pods[i]
		e := previous.raw[m.Pod]
		if e == nil || e.origin != m.Origin {
			e = previous.findEqual(m)
		}
		if e == nil {
			e = previous.reuse(d.prepare(m, nodeName), d, now)
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
	next.addInvalid()
	next.reserveInvalid(d)
	next.collectErrors(d, s, now)
	return next
}

// set returns the manifests and objects of the last Set.
func (d *sourceState) set() Set {
	return Set{Pods: d.manifests, Objects: d.objects, Cached: d.cached}
}

// unchanged returns how many manifests at the beginning and at the end are the same as
// before, so that the cost depends on the number of changes. After a state with
// invalid manifests, all are processed.
func (d *sourceState) unchanged(pods []Manifest) (head, tail int) {
	if len(d.bad) > 0 || len(d.entries) != len(d.byManifest) {
		return 0, 0
	}
	return commonEnds(d.manifests, pods)
}

// commonEnds returns the lengths of the common prefix of two slices and of the common
// suffix of the rest.
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

// reserveInvalid reserves the names of invalid pods that are not delivered in any version.
// Such a pod may run since before the start of this process. Once the source has synced,
// running pods that are not desired are terminated, and no reservation is needed.
func (d *sourceState) reserveInvalid(previous *sourceState) {
	delivered := make(map[string]bool)
	if len(d.bad) > 0 && !previous.synced {
		for _, e := range d.entries {
			delivered[e.full] = true
		}
		for _, e := range d.bad {
			if e.pod != nil && !delivered[e.full] {
				d.reservedNames[e.full] = true
			}
		}
	}
	d.synced = previous.synced || d.complete && len(d.reservedNames) == 0
}

// previousEntries indexes the entries of the previous state.
type previousEntries struct {
	entries []*entry // delivered ones
	raw     map[*corev1.Pod]*entry
	// Filled by fillIndex when a pod is not found by its pointer.
	uid  map[types.UID]*entry
	name map[[3]string]*entry // delivered ones by origin, namespace and name of the manifest
}

// index indexes the entries of d, without the unchanged head and tail.
func index(d *sourceState, head, tail int) previousEntries {
	f := previousEntries{entries: d.entries[head : len(d.entries)-tail]}
	f.raw = make(map[*corev1.Pod]*entry, len(f.entries))
	for _, e := range f.entries {
		f.raw[e.raw] = e
	}
	maps.Copy(f.raw, d.bad)
	return f
}

func (f *previousEntries) fillIndex() {
	if f.uid != nil {
		return
	}
	f.uid, f.name = make(map[types.UID]*entry, len(f.entries)), make(map[[3]string]*entry, len(f.entries))
	for _, e := range f.entries {
		f.uid[e.pod.UID], f.name[manifestKey(e.origin, e.raw)] = e, e
	}
}

func manifestKey(origin string, pod *corev1.Pod) [3]string {
	name := nameInManifest(pod)
	return [3]string{origin, name[0], name[1]}
}

// findEqual returns the entry of an equal pod with another pointer. Comparing pods is
// several times faster than processing a manifest.
func (f *previousEntries) findEqual(m Manifest) *entry {
	f.fillIndex()
	if m.Pod == nil {
		return nil
	}
	e := f.name[manifestKey(m.Origin, m.Pod)]
	if e == nil || !equal(e.raw, m.Pod) {
		return nil
	}
	same := *e
	same.raw = m.Pod
	return &same
}

// reuse copies to a delivered entry the time when its pod was first observed or, if the
// pod is unchanged, the previous pod itself.
func (f *previousEntries) reuse(e *entry, d *sourceState, now time.Time) *entry {
	if !e.isDelivered() {
		return e
	}
	f.fillIndex()
	previous := f.uid[e.pod.UID]
	if previous != nil {
		observedAt := previous.pod.Annotations[podspec.AnnotationFirstSeen]
		if e.pod.Annotations == nil {
			e.pod.Annotations = map[string]string{}
		}
		e.pod.Annotations[podspec.AnnotationFirstSeen] = observedAt
	}
	podspec.AnnotateSource(e.pod, d.source, now)
	podspec.MarkStatic(e.pod, d.static)
	if previous != nil && equal(previous.pod, e.pod) {
		e.pod = previous.pod
	}
	return e
}

// prepare sets identity and defaults of a pod and validates it. An invalid pod is reduced to
// what can be delivered, if it is not static and someone else has given it its identity.
func (d *sourceState) prepare(m Manifest, nodeName string) *entry {
	e := &entry{raw: m.Pod, origin: m.Origin, source: d.source}
	if m.Pod == nil {
		e.err = errors.New("nil pod")
		return e
	}
	pod := m.Pod.DeepCopy()
	delete(pod.Annotations, AnnotationInvalid)
	var errs []error
	if m.Origin != "" {
		// Only an API server or this agent may set these.
		for _, key := range []string{podspec.AnnotationMirror, podspec.AnnotationFirstSeen} {
			delete(pod.Annotations, key)
		}
		podspec.AssignStaticIdentity(pod, nodeName, d.source, m.Origin)
	} else if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	podspec.Default(pod)
	if pod.UID == "" {
		errs = append(errs, errors.New("metadata.uid: required: a Manifest needs an Origin or a pod with a UID"))
	}
	errs = append(errs, podspec.Validate(pod))
	if m.Origin != "" {
		if bad := d.unsupported(pod); len(bad) > 0 {
			errs = append(errs, bad.ToAggregate())
		}
	}
	e.pod, e.full, e.err = pod, podspec.FullName(pod), errors.Join(errs...)
	if e.err != nil {
		if !d.static && m.Origin == "" {
			e.pod = cmp.Or(reduced(pod, e.err), pod)
		}
		return e
	}
	for _, ref := range podspec.ObjectRefs(pod) {
		e.refs = append(e.refs, ref.Ref)
	}
	return e
}

// retainLastGood keeps the valid pods of the previous state whose manifest is now
// invalid: for an origin with an invalid pod, all pods that its valid pods do not
// replace; for a pod with its own UID, the pod with that UID.
func (d *sourceState) retainLastGood(previous *sourceState) {
	if len(d.bad) == 0 {
		return
	}
	origins, uids := map[string]bool{}, map[types.UID]*corev1.Pod{}
	for _, e := range d.bad {
		switch {
		case e.origin != "":
			origins[e.origin] = true
		case e.pod != nil:
			uids[e.pod.UID] = e.pod
		}
	}
	replaced, valid := map[[2]string]bool{}, map[types.UID]bool{}
	for _, e := range d.entries {
		replaced[[2]string{e.origin, e.full}], valid[e.pod.UID] = true, true
	}
	for _, e := range previous.entries {
		if e.err != nil {
			continue
		}
		sameOrigin := e.origin != "" && origins[e.origin] && !replaced[[2]string{e.origin, e.full}]
		invalid := uids[e.pod.UID]
		if (sameOrigin || e.origin == "" && invalid != nil) && !valid[e.pod.UID] {
			d.entries = append(d.entries, withDeletion(e, invalid))
		}
	}
}

// withDeletion returns a retained entry, deleted if the invalid version of its pod is:
// what is wrong with a spec must not keep its pod from ending.
func withDeletion(e *entry, invalid *corev1.Pod) *entry {
	if e.origin != "" || invalid.DeletionTimestamp == nil {
		return e
	}
	deleted, pod := *e, e.pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = invalid.DeletionTimestamp.DeepCopy(), nil
	if seconds := invalid.DeletionGracePeriodSeconds; seconds != nil {
		pod.DeletionGracePeriodSeconds = new(*seconds)
	}
	deleted.pod = pod
	return &deleted
}

// collectErrors collects the errors of the Set and of invalid pods.
func (d *sourceState) collectErrors(previous *sourceState, s Set, now time.Time) {
	if len(d.bad) == 0 && len(s.Errors) == 0 {
		return
	}
	byRaw, byFull, byOrigin := map[*corev1.Pod]*corev1.Pod{}, map[string]*corev1.Pod{}, map[string][]*corev1.Pod{}
	delivered := make(map[*corev1.Pod]bool, len(s.Pods))
	for _, m := range s.Pods {
		delivered[m.Pod] = true
	}
	for _, e := range d.entries {
		if e.err != nil {
			continue
		}
		byRaw[e.raw], byFull[e.full] = e.pod, e.pod
		if !delivered[e.raw] {
			byOrigin[e.origin] = append(byOrigin[e.origin], e.pod)
		}
	}
	for _, f := range s.Errors {
		f.RetainedPod = byRaw[f.RetainedPod] // the source has it without its identity
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
			f.Err = fmt.Errorf("invalid pod %s/%s: %w", m.Pod.Namespace, m.Pod.Name, e.err)
			if m.Pod.Namespace == "" {
				f.Err = fmt.Errorf("invalid pod %s: %w", m.Pod.Name, e.err)
			}
			f.RetainedPod = byFull[e.full]
			if f.RetainedPod == nil && e.isDelivered() {
				f.RejectedPod = e.pod
			}
		}
		if retained := byOrigin[e.origin]; f.RetainedPod == nil && e.origin != "" && len(retained) == 1 {
			f.RetainedPod = retained[0]
		}
		d.errors = append(d.errors, f)
	}
	keepSince(d.errors, previous.errors)
}
