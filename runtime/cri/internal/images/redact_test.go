package images

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IM-5: in whatever form a registry repeats a login, it is removed.
func TestRedact(t *testing.T) {
	auth := &v1.AuthConfig{Username: "ann", Password: `s3cr3t/pass+"word`, IdentityToken: "tok-1/2", RegistryToken: "reg-3"}
	quoted, err := json.Marshal(auth.GetPassword())
	require.NoError(t, err)
	pair := []byte("ann:" + auth.GetPassword())
	for _, form := range []string{
		auth.GetPassword(), auth.GetIdentityToken(), auth.GetRegistryToken(), url.QueryEscape(auth.GetPassword()), url.PathEscape(auth.GetPassword()),
		base64.StdEncoding.EncodeToString(pair), base64.RawStdEncoding.EncodeToString(pair), base64.URLEncoding.EncodeToString(pair),
		base64.StdEncoding.EncodeToString([]byte(auth.GetIdentityToken())), string(quoted[1 : len(quoted)-1]), string(pair),
	} {
		assert.Equal(t, "401 [redacted] for ann", Redact("401 "+form+" for ann", auth), form)
	}
	assert.Equal(t, "401 for ann", Redact("401 for ann", auth))
	assert.Equal(t, "401 for ann", Redact("401 for ann", &v1.AuthConfig{Username: "ann"}), "nothing is secret")
	assert.Equal(t, "no :", Redact("no :", nil))
	assert.Equal(t, "401 [redacted]", Redact("401 1234", &v1.AuthConfig{Password: "1234"}))
	assert.NotContains(t, Redact("401 123", &v1.AuthConfig{Password: "123"}), "123")
	assert.Contains(t, Redact("fine", &v1.AuthConfig{Password: "123"}), "withheld", "what is that short can be anywhere")
}
