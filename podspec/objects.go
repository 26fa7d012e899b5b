package podspec

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kinds of object that a pod may refer to.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
)

// Ref names an object that a pod refers to.
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
	// Version changes whenever Data does.
	Version string
}

// Objects returns the objects that pods refer to. The error wraps ErrObjectNotFound if an
// object does not exist; any other error means that this is not known.
type Objects interface {
	Object(ctx context.Context, ref Ref) (Object, error)
}

// FirstObjects returns Objects that ask places in order until one has the object, or
// fails for another reason than that it does not exist.
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
