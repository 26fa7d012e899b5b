package podspec_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// cluster is a place that has what only an API server has.
type cluster struct{ place }

func (cluster) ServiceAccountToken(_ context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	return []byte(pod.Name + " for " + p.Audience), nil
}

func (cluster) ClusterTrustBundle(_ context.Context, p *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	return []byte(*p.Name), nil
}

func (cluster) PodCertificate(_ context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (key, chain []byte, err error) {
	return []byte("key of " + pod.Name), []byte("chain of " + p.SignerName), nil
}

func (cluster) ServiceEnv(_ context.Context, pod *corev1.Pod) ([]corev1.EnvVar, error) {
	return []corev1.EnvVar{{Name: "SERVICE", Value: pod.Namespace}}, nil
}

func TestFirstObjects_KeepsWhatAPlaceCanDo(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "p", "ns"
	name := "bundle"
	all := podspec.FirstObjects(place{}, cluster{})
	token, err := all.(podspec.Projections).ServiceAccountToken(t.Context(), pod, &corev1.ServiceAccountTokenProjection{Audience: "vault"})
	require.NoError(t, err)
	assert.Equal(t, "p for vault", string(token))
	bundle, err := all.(podspec.Projections).ClusterTrustBundle(t.Context(), &corev1.ClusterTrustBundleProjection{Name: &name})
	require.NoError(t, err)
	assert.Equal(t, "bundle", string(bundle))
	key, chain, err := all.(podspec.Projections).PodCertificate(t.Context(), pod, &corev1.PodCertificateProjection{SignerName: "s"})
	require.NoError(t, err)
	assert.Equal(t, "key of p, chain of s", string(key)+", "+string(chain))
	env, err := all.(podspec.Services).ServiceEnv(t.Context(), pod)
	require.NoError(t, err)
	assert.Equal(t, []corev1.EnvVar{{Name: "SERVICE", Value: "ns"}}, env)

	none := podspec.FirstObjects(place{})
	_, err = none.(podspec.Projections).ServiceAccountToken(t.Context(), pod, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = none.(podspec.Projections).ClusterTrustBundle(t.Context(), nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, _, err = none.(podspec.Projections).PodCertificate(t.Context(), pod, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	env, err = none.(podspec.Services).ServiceEnv(t.Context(), pod)
	require.NoError(t, err)
	assert.Empty(t, env)
}

func TestUnsupportedInCluster(t *testing.T) {
	yes := true
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		ServiceAccountName: "sa", AutomountServiceAccountToken: &yes,
		Volumes: []corev1.Volume{
			{Name: "disk", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}},
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}},
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "b"}},
				{PodCertificate: &corev1.PodCertificateProjection{}},
			}}}},
		},
	}}
	pod.Annotations = map[string]string{podspec.AnnotationSource: podspec.SourceAPI}
	var fields []string
	for _, e := range podspec.UnsupportedInCluster(pod) {
		fields = append(fields, e.Field)
	}
	assert.Equal(t, []string{"spec.volumes[0].persistentVolumeClaim"}, fields)
	pod.Annotations[podspec.AnnotationSource] = "file"
	assert.Len(t, podspec.UnsupportedInCluster(pod), 6, "a static pod has no service account")
}

// projecting is a place of objects with the tokens of an API server.
type projecting struct {
	podspec.Objects
	podspec.Projections
}

func TestUnsupportedWith_TokensOfAnAPIServer(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}},
	}}}}}
	require.NotEmpty(t, podspec.UnsupportedWith(podspec.FirstObjects())(pod))
	require.Empty(t, podspec.UnsupportedWith(projecting{})(pod))
	require.Empty(t, podspec.UnsupportedWith(podspec.FirstObjects(podspec.FirstObjects(), projecting{}))(pod))
}
