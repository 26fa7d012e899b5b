package images

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fingerprint tells sets of logins apart without showing them.
func fingerprint(auths []*v1.AuthConfig) string {
	if len(auths) == 0 {
		return ""
	}
	h := sha256.New()
	for _, a := range auths {
		for _, s := range []string{a.GetUsername(), a.GetPassword(), a.GetIdentityToken(), a.GetRegistryToken()} {
			sum := sha256.Sum256([]byte(s))
			_, _ = h.Write(sum[:])
		}
	}
	return string(h.Sum(nil))
}

// Redact removes a login from what a registry or runtime said.
func Redact(said string, auth *v1.AuthConfig) string {
	const mark = "[redacted]"
	pair := auth.GetUsername() + ":" + auth.GetPassword()
	var secrets []string
	for _, s := range []string{auth.GetPassword(), auth.GetIdentityToken(), auth.GetRegistryToken(), auth.GetAuth()} {
		if s != "" {
			secrets = append(secrets, s)
		}
	}
	if len(secrets) == 0 {
		return said
	}
	if auth.GetPassword() != "" {
		secrets = append(secrets, pair)
	}
	for _, s := range secrets {
		if len(s) < 4 {
			// Too short to be found without a doubt.
			return "the message is withheld: it may hold a credential"
		}
	}
	for _, s := range slices.Clone(secrets) {
		b := []byte(s)
		secrets = append(secrets, url.QueryEscape(s), url.PathEscape(s), base64.StdEncoding.EncodeToString(b),
			base64.RawStdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b))
		if quoted, err := json.Marshal(s); err == nil {
			secrets = append(secrets, strings.Trim(string(quoted), `"`))
		}
	}
	// Longer ones first: a short one may be part of a long one.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, s := range secrets {
		said = strings.ReplaceAll(said, s, mark)
	}
	return said
}
