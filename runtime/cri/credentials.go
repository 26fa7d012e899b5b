package cri

import (
	"context"
	"log/slog"
)

// CredentialProvider finds logins of the node for image pulls, in addition to the pull
// secrets of pods. An image that was pulled with one of them is for every pod of the node.
// Package credentialprovider has those of a kubelet.
type CredentialProvider interface {
	// Credentials returns logins for an image, by the place that each is for: a registry,
	// with or without a path, as in the auths of Docker's configuration file. Parts of
	// the host may be globs. It is called before each pull, for several pods at once, and
	// returns when ctx is done. After an error the pull is tried with what was returned
	// and with the pull secrets. The error contains no secret: it is logged.
	Credentials(ctx context.Context, image string) (map[string]RegistryLogin, error)
}

// RegistryLogin is a login at a registry. It prints as "[redacted]".
type RegistryLogin struct {
	Username, Password           string
	IdentityToken, RegistryToken string
}

const redacted = "[redacted]"

// String implements fmt.Stringer.
func (RegistryLogin) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (RegistryLogin) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (RegistryLogin) LogValue() slog.Value { return slog.StringValue(redacted) }
