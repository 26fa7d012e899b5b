package podspec

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kinds of the objects that pods refer to.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
)

// Ref identifies a ConfigMap or Secret.
type Ref struct {
	Kind            string // ConfigMap or Secret
	Namespace, Name string
}

// Object is a ConfigMap or Secret as pods use it: bytes by key. It is read-only and must
// never be logged, because Data may be secret.
type Object struct {
	Ref
	Type corev1.SecretType // Secrets only
	Data map[string][]byte
	// BinaryKeys are the keys of the binaryData of a ConfigMap, which are files in volumes, but
	// no variables.
	BinaryKeys map[string]bool `json:",omitempty"`
	// Version changes whenever Data or BinaryKeys do.
	Version string
}

// Objects returns the objects that pods refer to. The error wraps ErrObjectNotFound if an
// object does not exist; any other error means that this is not known, and the pod waits.
// It may block until ctx is done and is called from many goroutines.
type Objects interface {
	Object(ctx context.Context, ref Ref) (Object, error)
}

// FirstObjects returns Objects that query places in order until one returns the object, or
// an error other than ErrObjectNotFound.
func FirstObjects(places ...Objects) Objects { return objectPlaces(slices.Clone(places)) }

type objectPlaces []Objects

// Object implements Objects.
func (l objectPlaces) Object(ctx context.Context, ref Ref) (o Object, err error) {
	err = ErrObjectNotFound // without places
	for _, place := range l {
		if o, err = place.Object(ctx, ref); err == nil || !errors.Is(err, ErrObjectNotFound) {
			break
		}
	}
	return o, err
}
