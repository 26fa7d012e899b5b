package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// maxFileBytes bounds what is read of a configuration file or of the answer of a plugin.
const maxFileBytes = 1 << 20

// DockerConfig has the logins of a configuration file of Docker's client. It is read for
// each image, so that changes have effect immediately. A file that does not exist has no
// logins. Credential helpers that the file names are not called.
type DockerConfig string

// Credentials implements cri.CredentialProvider. It returns all logins of the file.
func (path DockerConfig) Credentials(context.Context, string) (map[string]cri.RegistryLogin, error) {
	text, err := readFile(string(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	logins, err := images.DockerLogins(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return converted(logins), err
}

func converted(logins map[string]*v1.AuthConfig) map[string]cri.RegistryLogin {
	out := make(map[string]cri.RegistryLogin, len(logins))
	for where, a := range logins {
		out[where] = cri.RegistryLogin{Username: a.GetUsername(), Password: a.GetPassword(), IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken()}
	}
	return out
}

// readFile reads a file of at most maxFileBytes.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxFileBytes)
	}
	return text, err
}

// Join returns a provider with the logins of all providers. Of two for the same place that of
// the first is tried first. The error joins theirs.
func Join(providers ...cri.CredentialProvider) cri.CredentialProvider { return joined(providers) }

type joined []cri.CredentialProvider

var _ cri.PodCredentialProvider = joined(nil)

func (j joined) Credentials(ctx context.Context, image string) (map[string]cri.RegistryLogin, error) {
	return j.all(func(p cri.CredentialProvider) (map[string]cri.RegistryLogin, error) { return p.Credentials(ctx, image) })
}

func (j joined) PodCredentials(ctx context.Context, pod *corev1.Pod, image string) (map[string]cri.RegistryLogin, error) {
	return j.all(func(p cri.CredentialProvider) (map[string]cri.RegistryLogin, error) {
		if of, ok := p.(cri.PodCredentialProvider); ok {
			return of.PodCredentials(ctx, pod, image)
		}
		return p.Credentials(ctx, image)
	})
}

// all asks all providers.
func (j joined) all(ask func(cri.CredentialProvider) (map[string]cri.RegistryLogin, error)) (map[string]cri.RegistryLogin, error) {
	all := map[string]cri.RegistryLogin{}
	var errs []error
	for _, p := range j {
		logins, err := ask(p)
		errs = append(errs, err)
		addLogins(all, logins)
	}
	return all, errors.Join(errs...)
}

// addLogins adds the logins of a provider to those of the providers before it. A place that has another login already gets a
// slash more at its end, which says the same: as by a kubelet, both logins are tried.
func addLogins(all, logins map[string]cri.RegistryLogin) {
	for _, where := range slices.Sorted(maps.Keys(logins)) {
		login, place := logins[where], where
		for had, ok := all[place]; ok && had != login; had, ok = all[place] {
			place += "/"
		}
		all[place] = login
	}
}
