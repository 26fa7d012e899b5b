package kube

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
)

func TestObjects_TokenErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, server, _ := startTokens(t, "", 600)
		server.err = errors.New("no such service account")
		_, err := b.objects.ServiceAccountToken(t.Context(), podOf(), &corev1.ServiceAccountTokenProjection{})
		require.ErrorContains(t, err, "request token of service account default/sa: no such service account")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		server.err = nil
		b.objects.tokens.all[tokenKey{uid: "uid"}] = &tokenSlot{inUse: make(chan struct{})}
		_, err = b.objects.ServiceAccountToken(ctx, podOf(), &corev1.ServiceAccountTokenProjection{})
		require.ErrorIs(t, err, context.Canceled, "a request that hangs holds only its own token")
	})
}

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

// KU-5
func TestObjects_ServiceEnv(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443}),
			service("shop", "data-base", "fd00::1", corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Name: "x-y", Port: 80}),
			service("shop", "headless", "None", corev1.ServicePort{Port: 1}), service("other", "kubernetes", "10.0.0.9", corev1.ServicePort{Port: 1})).run()
		pod := podOf()
		pod.Namespace = "shop"
		env := func() map[string]string {
			vars, err := b.objects.ServiceEnv(t.Context(), pod)
			require.NoError(t, err)
			m := map[string]string{}
			for _, v := range vars {
				m[v.Name] = v.Value
			}
			return m
		}
		want := map[string]string{
			"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
			"KUBERNETES_PORT": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP": "tcp://10.0.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
			"KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.0.0.1",
		}
		no := false
		pod.Spec.EnableServiceLinks = &no
		assert.Equal(t, want, env(), "the API server is always there")
		pod.Spec.EnableServiceLinks = nil
		maps.Copy(want, map[string]string{
			"DATA_BASE_SERVICE_HOST": "fd00::1", "DATA_BASE_SERVICE_PORT": "53", "DATA_BASE_SERVICE_PORT_X_Y": "80", "DATA_BASE_PORT": "udp://[fd00::1]:53",
			"DATA_BASE_PORT_53_UDP": "udp://[fd00::1]:53", "DATA_BASE_PORT_53_UDP_PROTO": "udp", "DATA_BASE_PORT_53_UDP_PORT": "53", "DATA_BASE_PORT_53_UDP_ADDR": "fd00::1",
			"DATA_BASE_PORT_80_TCP": "tcp://[fd00::1]:80", "DATA_BASE_PORT_80_TCP_PROTO": "tcp", "DATA_BASE_PORT_80_TCP_PORT": "80", "DATA_BASE_PORT_80_TCP_ADDR": "fd00::1",
		})
		assert.Equal(t, want, env())
		pod.Namespace = "other"
		assert.Equal(t, map[string]string{
			"KUBERNETES_SERVICE_HOST": "10.0.0.9", "KUBERNETES_SERVICE_PORT": "1", "KUBERNETES_PORT": "tcp://10.0.0.9:1", "KUBERNETES_PORT_1_TCP": "tcp://10.0.0.9:1",
			"KUBERNETES_PORT_1_TCP_PROTO": "tcp", "KUBERNETES_PORT_1_TCP_PORT": "1", "KUBERNETES_PORT_1_TCP_ADDR": "10.0.0.9",
		}, env(), "its own service of that name, and nothing of the other")
		pod.Namespace = "shop"
		b.wait(2 * time.Second)
		b.stop()

		b = startObjects(t, dir)
		b.unreachable()
		b.run()
		assert.Equal(t, want, env(), "from disk while the API server does not answer")
		b.stop()

		b = startObjects(t, "")
		b.unreachable()
		b.run()
		_, err := b.objects.ServiceEnv(t.Context(), pod)
		require.ErrorIs(t, err, errNoAnswer)
		pod.Annotations[podspec.AnnotationSource] = "file"
		assert.Empty(t, env(), "static pods do not wait")
	})
}

func bundle(name, signer, text string, labels map[string]string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
}

func TestObjects_ClusterTrustBundle(t *testing.T) {
	const a = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	const c = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n"
	synctest.Test(t, func(t *testing.T) {
		prod := map[string]string{"env": "prod"}
		b := startObjects(t, "", bundle("one", "", "comment\n"+c+a, nil), bundle("s1", "example.com/s", c+a, prod), bundle("s2", "example.com/s", a, prod), bundle("s3", "example.com/t", c, prod)).run()
		assert.Zero(t, b.count("list", "clustertrustbundles"), "they are followed when one is used")
		name, none, signer := "one", "none", "example.com/s"
		for want, p := range map[string]corev1.ClusterTrustBundleProjection{
			"named":  {Name: &name},
			"signed": {SignerName: &signer, LabelSelector: &metav1.LabelSelector{MatchLabels: prod}},
		} {
			got, err := b.objects.ClusterTrustBundle(t.Context(), &p)
			require.NoError(t, err, want)
			assert.Equal(t, a+c, string(got), want)
		}
		for _, p := range []corev1.ClusterTrustBundleProjection{{Name: &none}, {SignerName: &signer}} {
			_, err := b.objects.ClusterTrustBundle(t.Context(), &p)
			require.ErrorIs(t, err, podspec.ErrObjectNotFound)
		}
		_, err := b.objects.ClusterTrustBundle(t.Context(), &corev1.ClusterTrustBundleProjection{})
		require.ErrorContains(t, err, "name or signerName required")
		bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}}
		_, err = b.objects.ClusterTrustBundle(t.Context(), &corev1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: bad})
		require.ErrorContains(t, err, "label selector")
	})
}

func TestObjects_ClusterTrustBundleWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, "")
		b.unreachable()
		b.run()
		name := "one"
		_, err := b.objects.ClusterTrustBundle(t.Context(), &corev1.ClusterTrustBundleProjection{Name: &name})
		require.ErrorContains(t, err, "list cluster trust bundles: connection refused")
	})
}
