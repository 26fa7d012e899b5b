package podsource

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// A Source knows which pods one origin wants to run here.
type Source interface {
	// Watch calls hand with the whole of what the source wants, at first and
	// whenever it changes, until ctx ends; it returns nil then. It calls hand
	// from one goroutine at a time, and not after it has returned. What it handed
	// over is read-only from then on. A pod that did not change should be handed
	// over as the same pointer again: nothing is compared then.
	Watch(ctx context.Context, hand func(Set)) error
}

// Set is all that a source wants, and what it could not find out. Of pods that
// share a full name or a UID the first counts, and the others are told as faults;
// so are objects of one name that differ. Equal objects are one.
type Set struct {
	Pods    []Manifest
	Objects []podspec.Object
	Errors  []SourceError

	// Incomplete says that the source may want pods that it cannot name: a
	// manifest could not be read and was never read before. As long as it is
	// set, a pod found running that came from this source may be one of them.
	Incomplete bool
	// Cached says that the source has not spoken yet, and that this is what it said
	// last to a former process: see Cached. Such a Set is Incomplete too.
	Cached bool
}

// ErrUnavailable is wrapped by faults of a source that cannot be asked, such as
// one whose server does not answer. What it wants is not known, or may be out of
// date; nothing is wrong with any manifest.
var ErrUnavailable = errors.New("source is unavailable")

// Manifest is a pod that a source wants.
type Manifest struct {
	Pod *corev1.Pod
	// Origin is the file or address that the pod was read from; the pod gets
	// an identity made from it. Empty: the pod has a UID of its own.
	Origin string
}

// NamedSource is a Source under the name that its pods bear in the annotation
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
	Err         error       // all errors found there; contains no values of the manifest
	Since       time.Time   // when the error was first found
	RetainedPod *corev1.Pod // last valid version of the pod, which keeps running; may be nil
}

// Error returns location and error.
func (e SourceError) Error() string { return fmt.Sprintf("%s: %v", e.Location, e.Err) }

// Unwrap returns Err.
func (e SourceError) Unwrap() error { return e.Err }
