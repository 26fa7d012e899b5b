package volume

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// tokenMode is the mode of tokens in a volume with a group, as with a kubelet.
const tokenMode int32 = 0o640

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
	var mode *int32
	if fsGroup(g.r.pod) != nil {
		m := tokenMode
		mode = &m
	}
	g.put(p.Path, token, mode)
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
	g.put(p.Path, data, nil)
}
