package images

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

func dockerSecret(name, text string) podspec.Object {
	return podspec.Object{
		Ref:  podspec.Ref{Kind: podspec.Secret, Namespace: "shop", Name: name},
		Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)},
	}
}

// IM-5: by host and path prefix, the longest match first.
func TestKeyring_Lookup(t *testing.T) {
	ring, err := NewKeyring([]podspec.Object{
		dockerSecret("one", `{"auths":{
			"https://index.docker.io/v1/": {"auth":"aHViOnB3"},
			"https://reg.example/v2/": {"username":"all","password":"p"},
			"reg.example/shop": {"username":"shop","password":"p"},
			"*.cloud.example": {"username":"glob","password":"p"},
			"eu.cloud.example": {"username":"eu","password":"p"},
			"reg.example:5000": {"username":"port","password":"p"},
			"[fd00::1]:5000": {"username":"six","password":"p"},
			"[fd00::2]": {"username":"bare","password":"p"},
			"registry-1.docker.io": {"username":"first","password":"p"},
			"docker.io/library": {"username":"library","password":"p"},
			"http://plain.example/team/": {"registrytoken":"t"}}}`),
		{Ref: podspec.Ref{Name: "old"}, Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{
			corev1.DockerConfigKey: []byte(`{"reg.example/shop/web": {"username":"web","password":"p","email":"x@y"}}`),
		}},
	})
	require.NoError(t, err)
	for image, want := range map[string][]string{
		"busybox":                    {"library", "hub"},
		"docker.io/busybox":          {"library", "hub"},
		"[fd00::1]:5000/foo":         {"six"},
		"[fd00::1]:5001/foo":         nil,
		"[fd00::2]/foo":              {"bare"},
		"[f]/foo":                    nil,
		"registry-1.docker.io/lab/x": {"first"},
		"docker.io/lab/x":            {"hub"},
		"reg.example/shop/web:1":     {"web", "shop", "all"},
		"reg.example/shop/webx:1":    {"shop", "all"},
		"reg.example/shopping:1":     {"all"},
		"reg.example:5000/x":         {"port"},
		"eu.cloud.example/x":         {"eu", "glob"},
		"a.b.cloud.example/x":        nil,
		"plain.example/team/x":       {""},
		"elsewhere.example/x":        nil,
	} {
		parsed, err := ParseReference(image)
		require.NoError(t, err)
		var got []string
		for _, a := range ring.lookup(parsed) {
			got = append(got, a.GetUsername())
		}
		assert.Equal(t, want, got, image)
	}
}

// A secret that is malformed costs nothing but itself, and its error
// holds none of it.
func TestNewKeyring_MalformedSecrets(t *testing.T) {
	ring, err := NewKeyring([]podspec.Object{
		dockerSecret("torn", `{"auths":{"a.example":{"auth":"hunter2`),
		dockerSecret("odd", `{"auths":{"b.example":{"auth":"%%%hunter2"},"":{"username":"u"},"c.example":{"username":"ok","password":"hunter2"}}}`),
		{Ref: podspec.Ref{Name: "empty"}},
	})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "hunter2")
	for _, name := range []string{"shop/torn", "shop/odd", "empty"} {
		assert.ErrorContains(t, err, name)
	}
	require.Len(t, ring, 1)
	assert.Equal(t, "ok", ring[0].auth.GetUsername())
}

// Whatever a pull secret holds, in the present and in the legacy form, no error quotes it.
func FuzzNewKeyring(f *testing.F) {
	f.Add([]byte(`{"auths":{"a.example/x":{"auth":"dTpw"}}}`), false)
	f.Add([]byte(`{"auths":{"https://[::1]:5/v2/":{"username":"u","password":"p"}}}`), false)
	f.Add([]byte(`{"auths":null}`), false)
	f.Add([]byte(`{"a.example/x":{"username":"u","password":"p"}}`), true)
	image, _ := ParseReference("reg.example/shop/web:1")
	f.Fuzz(func(t *testing.T, text []byte, legacy bool) {
		secret := dockerSecret("s", string(text))
		if legacy {
			secret.Data = map[string][]byte{corev1.DockerConfigKey: text}
		}
		ring, err := NewKeyring([]podspec.Object{secret})
		for _, c := range ring {
			require.NotEmpty(t, c.host)
			require.NotNil(t, c.auth)
			if p := c.auth.GetPassword(); len(p) > 8 && err != nil {
				require.NotContains(t, err.Error(), p)
			}
		}
		ring.lookup(image)
	})
}

func FuzzRedact(f *testing.F) {
	f.Add("401 for ann:secret", "secret")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, said, password string) {
		auth, ok := authOf(dockerEntry{Username: "ann", Password: password})
		require.True(t, ok)
		if password != "" && !strings.Contains("[redacted]the message is withheld: it may hold a credential", password) {
			require.NotContains(t, Redact(said, auth), password)
		}
	})
}
