package volume

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// privateMode is the mode of tokens, keys and trust bundles, without the bits for the fsGroup, as with a
// kubelet.
const privateMode int32 = 0o600

// containerUser returns the user as which all containers of a pod run by its spec, or nil.
// Ephemeral containers do not count: a debug container must not open the tokens to others.
func containerUser(pod *corev1.Pod) (uid *int64) {
	var ofPod *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		ofPod = sc.RunAsUser
	}
	for c, kind := range runtime.ContainerSpecs(pod) {
		if kind == runtime.Ephemeral {
			continue
		}
		user := ofPod
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil || uid != nil && *uid != *user {
			return nil
		}
		uid = user
	}
	return uid
}

// token adds a token of the pod's service account.
func (g *gatherer) token(p *corev1.ServiceAccountTokenProjection) {
	source, ok := g.r.objects.(podspec.Projections)
	if !ok {
		g.fail("token of service account %q: %w", g.r.pod.Spec.ServiceAccountName, errors.ErrUnsupported)
		return
	}
	token, err := source.ServiceAccountToken(g.ctx, g.r.pod, p)
	if err != nil {
		g.fail("token of service account %q: %w", g.r.pod.Spec.ServiceAccountName, err)
		return
	}
	g.putPrivate(p.Path, token)
}

// trustBundle adds the certificates of a bundle. A bundle that is optional and does not
// exist is an empty file.
func (g *gatherer) trustBundle(p *corev1.ClusterTrustBundleProjection) {
	source, ok := g.r.objects.(podspec.Projections)
	if !ok {
		g.fail("cluster trust bundle for %s: %w", p.Path, errors.ErrUnsupported)
		return
	}
	data, err := source.ClusterTrustBundle(g.ctx, p)
	if err != nil && (!errors.Is(err, podspec.ErrObjectNotFound) || p.Optional == nil || !*p.Optional) {
		g.fail("cluster trust bundle for %s: %w", p.Path, err)
		return
	}
	g.putPrivate(p.Path, data)
}

// certificate adds the files of a private key and its certificate chain.
func (g *gatherer) certificate(p *corev1.PodCertificateProjection) {
	source, ok := g.r.objects.(podspec.Projections)
	if !ok {
		g.fail("certificate of signer %s: %w", p.SignerName, errors.ErrUnsupported)
		return
	}
	key, chain, err := source.PodCertificate(g.ctx, g.r.pod, p)
	if err != nil {
		g.fail("certificate of signer %s: %w", p.SignerName, err)
		return
	}
	for at, data := range map[string][]byte{p.CredentialBundlePath: slices.Concat(key, chain), p.KeyPath: key, p.CertificateChainPath: chain} {
		if at != "" {
			g.putPrivate(at, data)
		}
	}
}
