package cri

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
)

// CredentialProvider finds logins of the node for image pulls, in addition to the pull
// secrets of pods. An image that was pulled with one of them is for every pod of the node,
// unless RegistryLogin.ServiceAccount says otherwise.
// Package credentialprovider has those of a kubelet.
type CredentialProvider interface {
	// Credentials returns logins for an image, by the place that each is for: a registry,
	// with or without a path, as in the auths of Docker's configuration file. Parts of
	// the host may be globs. Slashes at the end of a place mean nothing, so that there can
	// be several logins for one: that of r.example is tried before that of r.example/.
	//
	// It is called before each pull, for several pods at once, and returns when ctx is
	// done. After an error the pull is tried with what was returned and with the pull
	// secrets. The error contains no secret: it is logged.
	Credentials(ctx context.Context, image string) (map[string]RegistryLogin, error)
}

// PodCredentialProvider is a CredentialProvider whose logins depend on the pod.
type PodCredentialProvider interface {
	CredentialProvider
	// PodCredentials is called instead of Credentials, also to find out whether the pod
	// may use an image that is present.
	PodCredentials(ctx context.Context, pod *corev1.Pod, image string) (map[string]RegistryLogin, error)
}

// RegistryLogin is a login at a registry. It prints as "[redacted]".
type RegistryLogin struct {
	Username, Password           string
	IdentityToken, RegistryToken string
	// ServiceAccount identifies the service account of the pod, if the login is for its pods
	// only: an image that was pulled with it is for pods with a login of the same
	// service account. "": the image is for every pod of the node.
	ServiceAccount string
}

const redacted = "[redacted]"

// String implements fmt.Stringer.
func (RegistryLogin) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (RegistryLogin) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (RegistryLogin) LogValue() slog.Value { return slog.StringValue(redacted) }
