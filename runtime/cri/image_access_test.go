package cri

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
)

// privateRegistry has images that only ann may pull, and one that all may.
func privateRegistry() *fake {
	f := newFake()
	f.setBefore(func(_ context.Context, rpc string, req any) error {
		r, ok := req.(*v1.PullImageRequest)
		if !ok || rpc != "PullImage" || strings.Contains(r.GetImage().GetImage(), "public") || r.GetAuth().GetUsername() == "ann" && r.GetAuth().GetPassword() == "right" {
			return nil
		}
		return status.Error(codes.Unauthenticated, "401")
	})
	return f
}

func loginOf(user, password string) podspec.Object {
	return dockerSecret("s", `{"auths":{"reg.example":{"username":"`+user+`","password":"`+password+`"}}}`)
}

const private = "reg.example/team/app:1"

// use is a pod that needs an image, and returns the reason why it does not get it.
func use(t *testing.T, c *Client, ref string, policy corev1.PullPolicy, secrets ...podspec.Object) string {
	t.Helper()
	im, err := newEnsureRun(c, onePod("main"), secrets...).ensure(t.Context(), "main", neededImage{ref, policy})
	if err != nil {
		return failure("", err).Reason
	}
	require.NotNil(t, im)
	return ""
}

// IM-6: an image that is on the node is given to those alone who could pull it.
func TestImageAccess(t *testing.T) {
	f := privateRegistry()
	f.addImage("reg.example/team/preloaded:1")
	cfg := Config{ImageAccess: ImageAccess{File: filepath.Join(t.TempDir(), "pulls.json")}}
	c := f.client(t, cfg)
	ann, bob, old := loginOf("ann", "right"), loginOf("bob", "x"), loginOf("ann", "old")
	const ifNotPresent, never = corev1.PullIfNotPresent, corev1.PullNever

	assert.Empty(t, use(t, c, "reg.example/team/preloaded:1", ifNotPresent), "nobody pulled it")
	assert.Empty(t, use(t, c, "reg.example/public:1", ifNotPresent))
	require.Empty(t, use(t, c, private, ifNotPresent, ann))
	pulls := len(f.pulls)

	for range 2 { // this process and the next
		assert.Empty(t, use(t, c, private, ifNotPresent, ann))
		assert.Empty(t, use(t, c, private, never, ann))
		assert.Empty(t, use(t, c, "reg.example/public:1", never))
		assert.Len(t, f.pulls, pulls, "nothing was asked of the registry")
		assert.Equal(t, "ErrImagePull", use(t, c, private, ifNotPresent))
		assert.Equal(t, "ErrImagePull", use(t, c, private, ifNotPresent, bob))
		assert.Equal(t, "ErrImagePull", use(t, c, private, ifNotPresent, old))
		assert.Equal(t, "ErrImageNeverPull", use(t, c, private, never, bob))
		c = f.client(t, cfg)
	}

	info, err := os.Stat(cfg.ImageAccess.File)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	text, err := os.ReadFile(cfg.ImageAccess.File)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "right")
	assert.NotContains(t, string(text), "ann")
}

// The one image under another name is another image to pull.
func TestImageAccess_ByAnotherName(t *testing.T) {
	f := privateRegistry()
	c := f.client(t, Config{})
	require.Empty(t, use(t, c, private, corev1.PullIfNotPresent, loginOf("ann", "right")))
	f.mu.Lock()
	f.images["reg.example/team/public-alias:1"] = f.images[private]
	f.mu.Unlock()
	assert.Equal(t, "ErrImageNeverPull", use(t, c, "reg.example/team/public-alias:1", corev1.PullNever))
	assert.Empty(t, use(t, c, "reg.example/team/public-alias:1", corev1.PullIfNotPresent), "its registry lets everybody have it")
	assert.Equal(t, "ErrImagePull", use(t, c, private, corev1.PullIfNotPresent))
}

func TestImageAccess_Policies(t *testing.T) {
	for name, tc := range map[string]struct {
		access                 ImageAccess
		pulled, preloaded, hub string
	}{
		"never":      {ImageAccess{Policy: NeverVerify}, "", "", ""},
		"by default": {ImageAccess{}, "ErrImageNeverPull", "", ""},
		"always":     {ImageAccess{Policy: AlwaysVerify}, "ErrImageNeverPull", "ErrImageNeverPull", "ErrImageNeverPull"},
		"a list of names": {
			ImageAccess{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"reg.example/team/app", "busybox"}}, "", "ErrImageNeverPull", "",
		},
		"a list of beginnings": {
			ImageAccess{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"reg.example/*", "docker.io/lib/*"}}, "", "", "ErrImageNeverPull",
		},
		"a registry's beginning": {
			ImageAccess{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"docker.io/*", "reg.example/te/*"}}, "ErrImageNeverPull", "ErrImageNeverPull", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := privateRegistry()
			f.addImage("reg.example/other:1")
			f.addImage("busybox:latest")
			c := f.client(t, Config{ImageAccess: tc.access})
			require.Empty(t, use(t, c, private, corev1.PullAlways, loginOf("ann", "right")))
			assert.Equal(t, tc.pulled, use(t, c, private, corev1.PullNever))
			assert.Equal(t, tc.preloaded, use(t, c, "reg.example/other:1", corev1.PullNever))
			assert.Equal(t, tc.hub, use(t, c, "busybox", corev1.PullNever))
		})
	}
	for _, bad := range []ImageAccess{
		{Policy: "Sometimes"},
		{Allowlist: []string{"a"}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{""}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"*"}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"reg.example/a*"}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"a:1"}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{" a"}},
		{Policy: NeverVerifyAllowlistedImages, Allowlist: []string{"/*"}},
	} {
		assert.Error(t, bad.Check(), "%+v", bad)
	}
}
