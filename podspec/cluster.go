package podspec

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Projections is an optional interface of Objects: the sources of projected volumes that
// only the API server of a cluster has. The errors never contain a token.
type Projections interface {
	// ServiceAccountToken returns a token of the pod's service account that is valid now.
	// Volumes are written again at each sync of a pod, so a token must be renewed before
	// it expires.
	ServiceAccountToken(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error)
	// ClusterTrustBundle returns PEM certificates. The error wraps ErrObjectNotFound if no
	// bundle is selected.
	ClusterTrustBundle(ctx context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error)
	// PodCertificate returns a private key in PKCS #8 and its certificate chain, both in PEM.
	// They belong together and are renewed before the certificate expires.
	PodCertificate(ctx context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (key, chain []byte, err error)
}

// Services is an optional interface of Objects: the variables that tell the containers
// of a pod where services are. The pod's enableServiceLinks says of which; nil is true.
type Services interface {
	ServiceEnv(ctx context.Context, pod *corev1.Pod) ([]corev1.EnvVar, error)
}

// ServiceAccountToken implements Projections by the first place that does.
func (l objectPlaces) ServiceAccountToken(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	if s, ok := firstPlace[Projections](l); ok {
		return s.ServiceAccountToken(ctx, pod, p)
	}
	return nil, errors.ErrUnsupported
}

// ClusterTrustBundle implements Projections by the first place that does.
func (l objectPlaces) ClusterTrustBundle(ctx context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	if s, ok := firstPlace[Projections](l); ok {
		return s.ClusterTrustBundle(ctx, p)
	}
	return nil, errors.ErrUnsupported
}

// PodCertificate implements Projections by the first place that does.
func (l objectPlaces) PodCertificate(ctx context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (key, chain []byte, err error) {
	if s, ok := firstPlace[Projections](l); ok {
		return s.PodCertificate(ctx, pod, p)
	}
	return nil, nil, errors.ErrUnsupported
}

// ServiceEnv implements Services by the first place that does; there are none without.
func (l objectPlaces) ServiceEnv(ctx context.Context, pod *corev1.Pod) ([]corev1.EnvVar, error) {
	if s, ok := firstPlace[Services](l); ok {
		return s.ServiceEnv(ctx, pod)
	}
	return nil, nil
}

func firstPlace[T any](l objectPlaces) (T, bool) {
	for _, place := range l {
		if t, ok := place.(T); ok {
			return t, true
		}
	}
	var none T
	return none, false
}

// UnsupportedInCluster is Unsupported for a node whose Objects implement Projections: a
// pod of the API server may have a service account, its tokens and certificates. Static pods may not,
// as with a kubelet.
func UnsupportedInCluster(pod *corev1.Pod) field.ErrorList {
	all := Unsupported(pod)
	if IsStatic(pod) {
		return all
	}
	served := map[string]bool{"spec.serviceAccountName": true, "spec.automountServiceAccountToken": true}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Projected == nil {
			continue
		}
		sources := field.NewPath("spec", "volumes").Index(i).Child("projected", "sources")
		for j := range pod.Spec.Volumes[i].Projected.Sources {
			served[sources.Index(j).Child("serviceAccountToken").String()] = true
			served[sources.Index(j).Child("clusterTrustBundle").String()] = true
			served[sources.Index(j).Child("podCertificate").String()] = true
		}
	}
	return slices.DeleteFunc(all, func(e *field.Error) bool { return served[e.Field] })
}

// UnsupportedWith returns the fields that a node cannot implement whose pods have these
// Objects: with the tokens of an API server UnsupportedInCluster, else Unsupported.
func UnsupportedWith(o Objects) func(*corev1.Pod) field.ErrorList {
	places, ok := o.(objectPlaces)
	if !ok {
		places = objectPlaces{o}
	}
	if _, ok := firstPlace[Projections](places); ok {
		return UnsupportedInCluster
	}
	return Unsupported
}
