package podsource

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// A Source delivers the desired pods of one origin.
type Source interface {
	// Watch calls deliver with the complete desired set, first as soon as it is
	// known and then whenever it changes. It blocks until ctx is done and then
	// returns nil; any other return is a failure. It calls deliver from one
	// goroutine at a time and not after it has returned. A delivered Set is
	// read-only. An unchanged pod should be delivered as the same pointer, which
	// saves a comparison.
	Watch(ctx context.Context, deliver func(Set)) error
}

// Set is the complete desired set of a source. If pods share a full name or a UID,
// the first one is used and the others are reported as errors. The same holds for
// different objects of one name; equal objects count as one.
type Set struct {
	Pods    []Manifest
	Objects []podspec.Object
	Errors  []SourceError

	// Incomplete is set if Pods may lack desired pods, because a manifest could not
	// be read and has never been read before. A running pod of this source may then
	// still be desired.
	Incomplete bool
	// Cached is set if the source has not delivered anything yet and the Set was
	// saved by a previous process: see the function Cached. Such a Set is Incomplete,
	// too.
	Cached bool
}

// ErrUnavailable is wrapped by errors of a source that cannot be queried, for example
// because its server does not respond. The desired pods of the source are then unknown
// or may be out of date; no manifest is at fault.
var ErrUnavailable = errors.New("source is unavailable")

// Manifest is one desired pod of a source.
type Manifest struct {
	Pod *corev1.Pod
	// Origin is the file or URL that the pod was read from; the identity of the pod
	// is derived from it. Empty: the pod has its own UID.
	Origin string
}

// NamedSource is a Source with the name that its pods have in the annotation
// kubernetes.io/config.source.
type NamedSource struct {
	Name   string
	Source Source
}

// SourceError is an unreadable source, or an invalid or duplicate manifest or object.
// It is reported until it is resolved.
type SourceError struct {
	Source      string      // name of the source; set by the Mux
	Location    string      // file, URL or name of the source
	Err         error       // all errors found there; quotes wrong names, but no data of Secrets and values of variables
	Since       time.Time   // when the error was first found
	RetainedPod *corev1.Pod // last valid version of the pod, which keeps running; may be nil
	RejectedPod *corev1.Pod // the pod as delivered, if it is to be rejected: see InvalidReason; may be nil
}

// Error returns location and error.
func (e SourceError) Error() string { return fmt.Sprintf("%s: %v", e.Location, e.Err) }

// Unwrap returns Err.
func (e SourceError) Unwrap() error { return e.Err }
