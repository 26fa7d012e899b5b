package podspec

import (
	"context"

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

// Object is a ConfigMap or Secret in the one form that pods use: bytes by key.
// It is read-only once handed over. It must never be logged: Data may be secret.
type Object struct {
	Ref
	Type corev1.SecretType // Secrets only
	Data map[string][]byte
	// Version changes whenever Data does.
	Version string
}

// Objects finds what pods refer to. An unknown Ref is an error that wraps
// ErrNoObject; any other error means that it could not be found out.
type Objects interface {
	Object(ctx context.Context, ref Ref) (Object, error)
}
