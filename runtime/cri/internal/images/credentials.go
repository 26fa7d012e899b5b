package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// credential is a login and where it is meant for. It is never printed.
type credential struct {
	host   string // with port; parts of the name may be globs
	prefix string // of the repository's path; "" matches all
	auth   *v1.AuthConfig
	// account is the service account that a login of the node is for; "": all pods.
	account string
}

// NodeLogin is a login of the node, or of one of its service accounts.
type NodeLogin struct {
	Auth    *v1.AuthConfig
	Account string // identifies the service account; "": the login is for all pods
}

// Keyring holds credentials, the most specific first.
type Keyring []credential

// NewKeyring reads the credentials of pull secrets. What is malformed is left
// out and reported by an error that names the secret and contains nothing of it.
func NewKeyring(secrets []podspec.Object) (Keyring, error) {
	var ring Keyring
	var errs []error
	for _, s := range secrets {
		found, err := parseSecret(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("pull secret %s/%s: %w", s.Namespace, s.Name, err))
		}
		ring = append(ring, found...)
	}
	ring.sort()
	return ring, errors.Join(errs...)
}

// sort puts the most specific first.
func (k Keyring) sort() {
	slices.SortStableFunc(k, func(a, b credential) int {
		if d := len(b.prefix) - len(a.prefix); d != 0 {
			return d
		}
		return strings.Count(a.host, "*") - strings.Count(b.host, "*")
	})
}

// NodeKeyring returns a Keyring of the logins of the node, by the place that each is for.
// The error says how many places are malformed.
func NodeKeyring(logins map[string]NodeLogin) (Keyring, error) {
	var ring Keyring
	bad := 0
	for _, where := range slices.Sorted(maps.Keys(logins)) {
		host, prefix, ok := location(where)
		if !ok {
			bad++
			continue
		}
		ring = append(ring, credential{host, prefix, logins[where].Auth, logins[where].Account})
	}
	ring.sort()
	if bad > 0 {
		return ring, fmt.Errorf("%d entries are malformed: %w", bad, runtime.ErrInvalid)
	}
	return ring, nil
}

// DockerLogins reads the configuration file of Docker's client: the logins by the place
// that each is for. What is malformed is left out and counted by the error, which contains
// nothing of the text.
func DockerLogins(text []byte) (map[string]*v1.AuthConfig, error) {
	file, err := decodeDockerConfigJSON(text)
	out, bad := map[string]*v1.AuthConfig{}, 0
	for where, e := range file {
		auth, readable := authOf(e)
		if !IsPlace(where) || !readable {
			bad++
			continue
		}
		out[where] = auth
	}
	if bad > 0 {
		err = fmt.Errorf("%d entries are malformed: %w", bad, runtime.ErrInvalid)
	}
	return out, err
}

// dockerEntry is one login in the files of Docker's client.
type dockerEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func parseSecret(s podspec.Object) (Keyring, error) {
	if text, ok := s.Data[corev1.DockerConfigJsonKey]; ok {
		return parseDockerConfigJSON(text)
	}
	if text, ok := s.Data[corev1.DockerConfigKey]; ok {
		return parseDockerConfig(text)
	}
	return nil, fmt.Errorf("has neither %s nor %s: %w", corev1.DockerConfigJsonKey, corev1.DockerConfigKey, runtime.ErrInvalid)
}

func parseDockerConfigJSON(text []byte) (Keyring, error) {
	all, err := decodeDockerConfigJSON(text)
	if err != nil {
		return nil, err
	}
	return entries(all)
}

func decodeDockerConfigJSON(text []byte) (map[string]dockerEntry, error) {
	var file struct {
		Auths map[string]dockerEntry `json:"auths"`
	}
	// The decoder's error may quote the text.
	if json.Unmarshal(text, &file) != nil {
		return nil, fmt.Errorf("is not a docker configuration: %w", runtime.ErrInvalid)
	}
	return file.Auths, nil
}

func parseDockerConfig(text []byte) (Keyring, error) {
	var all map[string]dockerEntry
	if json.Unmarshal(text, &all) != nil {
		return nil, fmt.Errorf("is not a docker configuration: %w", runtime.ErrInvalid)
	}
	return entries(all)
}

func entries(all map[string]dockerEntry) (Keyring, error) {
	var ring Keyring
	bad := 0
	for where, e := range all {
		host, prefix, ok := location(where)
		auth, readable := authOf(e)
		if !ok || !readable {
			bad++
			continue
		}
		ring = append(ring, credential{host: host, prefix: prefix, auth: auth})
	}
	// Maps have no order; which of two equally good logins comes first must
	// not change from sync to sync.
	slices.SortFunc(ring, func(a, b credential) int { return strings.Compare(a.host+"/"+a.prefix, b.host+"/"+b.prefix) })
	if bad > 0 {
		return ring, fmt.Errorf("%d entries are malformed: %w", bad, runtime.ErrInvalid)
	}
	return ring, nil
}

// location takes the place that a login is for apart: host, host/path, or the
// URL of a registry's API.
func location(where string) (host, prefix string, ok bool) {
	for _, scheme := range []string{"https://", "http://"} {
		where = strings.TrimPrefix(where, scheme)
	}
	host, prefix, _ = strings.Cut(where, "/")
	for _, api := range []string{"v1", "v2"} {
		if prefix == api {
			prefix = ""
		}
		prefix = strings.TrimPrefix(prefix, api+"/")
	}
	prefix = strings.Trim(prefix, "/")
	if host == "index.docker.io" {
		host = DockerHub
	}
	if _, err := path.Match(host, ""); err != nil || host == "" || strings.ContainsAny(host, " \t\n@") {
		return "", "", false
	}
	return host, prefix, true
}

func authOf(e dockerEntry) (*v1.AuthConfig, bool) {
	if e.Auth != "" {
		text, err := base64.StdEncoding.DecodeString(strings.TrimRight(e.Auth, "\n\r "))
		if err != nil {
			text, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(e.Auth, "=\n\r "))
		}
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return nil, false
		}
		e.Username, e.Password = user, strings.TrimRight(password, "\x00\n\r")
	}
	if e.Username == "" && e.IdentityToken == "" && e.RegistryToken == "" {
		return nil, false
	}
	return &v1.AuthConfig{
		Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken,
	}, true
}

// Request returns a request for the image name, with the logins that match, for the
// runtime handler of the pod.
func (k Keyring) Request(name, handler string) (Request, error) {
	ref, err := ParseReference(name)
	if err != nil {
		return Request{}, err
	}
	return Request{Ref: withTag(name, ref), repository: ref.Repository(), handler: handler, logins: k.lookup(ref)}, nil
}

// WithNode returns the request with the logins of the node that match, which are tried
// after those of the pod. An image that is pulled with one of them is for every pod, or for
// those of the service account that the login is for.
func (r Request) WithNode(ring Keyring) Request {
	ref, err := ParseReference(r.Ref)
	if err != nil {
		return r
	}
	r.nodeLogins, r.accounts = nil, map[*v1.AuthConfig]string{}
	for _, c := range ring {
		if c.matches(ref) {
			r.nodeLogins = append(r.nodeLogins, c.auth)
			r.accounts[c.auth] = c.account
		}
	}
	return r
}

// lookup returns the logins for an image, the best match first.
func (k Keyring) lookup(r Reference) []*v1.AuthConfig {
	var out []*v1.AuthConfig
	for _, c := range k {
		if c.matches(r) {
			out = append(out, c.auth)
		}
	}
	return out
}

func (c credential) matches(r Reference) bool {
	return hostMatches(c.host, r.Registry) && (c.prefix == "" || r.Path == c.prefix || strings.HasPrefix(r.Path, c.prefix+"/"))
}

// hostMatches compares part by part, so that a glob never spans a dot, and the
// port as a whole. There are no globs in an address in brackets.
func hostMatches(pattern, host string) bool {
	if strings.HasPrefix(pattern, "[") {
		return strings.EqualFold(pattern, host)
	}
	pattern, wantPort, _ := strings.Cut(pattern, ":")
	host, port, _ := strings.Cut(host, ":")
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if wantPort != port || len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// Matches reports whether a place that a login is for, or a pattern of a credential
// provider, matches an image. An invalid one matches nothing.
func Matches(where, image string) bool {
	host, prefix, ok := location(where)
	ref, err := ParseReference(image)
	return ok && err == nil && credential{host: host, prefix: prefix}.matches(ref)
}

// IsPlace reports whether where says what a login is for.
func IsPlace(where string) bool {
	_, _, ok := location(where)
	return ok
}
