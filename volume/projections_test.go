package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// server is a store that makes tokens and has a trust bundle.
type server struct {
	store
	token string
	err   error
}

func (s *server) ServiceAccountToken(_ context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	return []byte(s.token + pod.Spec.ServiceAccountName + p.Audience), s.err
}

func (s *server) ClusterTrustBundle(_ context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	if p.Name == nil {
		return nil, podspec.ErrObjectNotFound
	}
	return []byte("certificates"), s.err
}

func (s *server) PodCertificate(_ context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (key, chain []byte, err error) {
	return []byte("key of " + pod.Name + "\n"), []byte("chain of " + p.SignerName + "\n"), s.err
}

func TestMount_PodCertificate(t *testing.T) {
	const volume = "  - {name: v, projected: {sources: [{podCertificate: {signerName: s, keyType: ED25519, credentialBundlePath: d/both, keyPath: key, certificateChainPath: chain}}, " +
		"{podCertificate: {signerName: t, keyType: ED25519, keyPath: other}}]}}\n"
	m, p := manager(t, nil), pod(t, "u", volume)
	gid := int64(os.Getgid())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	dir := mount(t, m, p, &server{})["v"].HostPath
	for name, want := range map[string]string{
		"d/both": "key of " + p.Name + "\nchain of s\n", "key": "key of " + p.Name + "\n", "chain": "chain of s\n", "other": "key of " + p.Name + "\n",
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(b))
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.EqualValues(t, 0o640, info.Mode().Perm(), "for the group alone")
	}
	assert.True(t, hasSecret(&p.Spec.Volumes[0]))

	_, err := m.Mount(t.Context(), p, &server{err: errors.New("denied")})
	require.ErrorContains(t, err, "certificate of signer s: denied")
	_, err = m.Mount(t.Context(), p, &store{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

const tokenVolume = "  - {name: v, projected: {sources: [{serviceAccountToken: {path: token, audience: vault}}, {clusterTrustBundle: {path: ca, name: b}}]}}\n"

func TestMount_TokensAndTrustBundles(t *testing.T) {
	m, p := manager(t, nil), pod(t, "u", tokenVolume)
	p.Spec.ServiceAccountName = "sa"
	s := &server{token: "one "}
	dir := mount(t, m, p, s)["v"].HostPath
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(b)
	}
	assert.Equal(t, "one savault", read("token"))
	assert.Equal(t, "certificates", read("ca"))
	s.token = "two "
	mount(t, m, p, s)
	assert.Equal(t, "two savault", read("token"), "a renewed token replaces the old one")
}

func TestMount_TokenIsForTheGroup(t *testing.T) {
	m, p := manager(t, nil), pod(t, "u", tokenVolume)
	gid := int64(os.Getgid())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid}
	info, err := os.Stat(filepath.Join(mount(t, m, p, &server{})["v"].HostPath, "token"))
	require.NoError(t, err)
	assert.EqualValues(t, 0o640, info.Mode().Perm())
}

// A token belongs to the user of the containers, and only that user may read it.
func TestMount_TokenIsForTheUser(t *testing.T) {
	own, other := int64(os.Getuid()), int64(os.Getuid())+1
	if os.Geteuid() == 0 {
		own, other = 1000, 1001
	}
	user := func(uid *int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: uid} }
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		mode   os.FileMode
		owner  int64
	}{
		"of the pod": {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &own} }, 0o600, own},
		"of each container": {func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = user(&own)
			p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: user(&own)}}
		}, 0o600, own},
		"of a container and the pod": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &other}
			p.Spec.Containers[0].SecurityContext = user(&own)
		}, 0o600, own},
		"with a group": {func(p *corev1.Pod) {
			gid := int64(os.Getgid())
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &own, FSGroup: &gid}
		}, 0o640, own},
		"of a debug container": {func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = user(&own)
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}}}
		}, 0o600, own},
		"two users": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &own}
			p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: user(&other)}}
		}, 0o644, int64(os.Getuid())},
		"one container without": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: user(&own)}}
		}, 0o644, int64(os.Getuid())},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := manager(t, nil), pod(t, "u", tokenVolume)
			c.change(p)
			for _, token := range []string{"one ", "two "} {
				dir := mount(t, m, p, &server{token: token})["v"].HostPath
				info, err := os.Stat(filepath.Join(dir, "token"))
				require.NoError(t, err)
				assert.Equal(t, c.mode, info.Mode().Perm())
				assert.EqualValues(t, c.owner, info.Sys().(*syscall.Stat_t).Uid)
				ca, err := os.Stat(filepath.Join(dir, "ca"))
				require.NoError(t, err)
				assert.Equal(t, c.mode, ca.Mode().Perm(), "as the token, as with a kubelet")
				assert.EqualValues(t, c.owner, ca.Sys().(*syscall.Stat_t).Uid)
			}
		})
	}
}

func TestMount_TokenErrors(t *testing.T) {
	m, p := manager(t, nil), pod(t, "u", tokenVolume)
	_, err := m.Mount(t.Context(), p, &server{err: errors.New("connection refused"), token: "secret"})
	require.ErrorContains(t, err, `token of service account "": connection refused`)
	require.ErrorContains(t, err, "cluster trust bundle for ca: connection refused")
	assert.NotContains(t, err.Error(), "secret")
	_, err = m.Mount(t.Context(), p, &store{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestMount_OptionalTrustBundle(t *testing.T) {
	m := manager(t, nil)
	p := pod(t, "u", `  - {name: v, projected: {sources: [{clusterTrustBundle: {path: ca, signerName: s, optional: true}}]}}`)
	b, err := os.ReadFile(filepath.Join(mount(t, m, p, &server{})["v"].HostPath, "ca"))
	require.NoError(t, err)
	assert.Empty(t, b)
	p = pod(t, "w", `  - {name: v, projected: {sources: [{clusterTrustBundle: {path: ca, signerName: s}}]}}`)
	_, err = m.Mount(t.Context(), p, &server{})
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
}
