package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newCertifiedPod returns a pod with a volume of a certificate.
func newCertifiedPod(name string) *corev1.Pod {
	pod := newTestPod(name)
	pod.Spec.ServiceAccountName = "sa"
	pod.Spec.Volumes = []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/signer", KeyType: "ECDSAP256", CredentialBundlePath: "bundle"}},
	}}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	return pod
}

// requestOf waits for the request of a pod that has no answer.
func (c *realCluster) requestOf(pod string) *certificatesv1.PodCertificateRequest {
	c.t.Helper()
	var found *certificatesv1.PodCertificateRequest
	require.EventuallyWithT(c.t, func(collect *assert.CollectT) {
		list, err := c.admin.CertificatesV1().PodCertificateRequests("default").List(c.t.Context(), metav1.ListOptions{})
		if !assert.NoError(collect, err) {
			return
		}
		for i := range list.Items {
			if list.Items[i].Spec.PodName == pod {
				found = &list.Items[i]
			}
		}
		assert.NotNil(collect, found)
	}, time.Minute, 50*time.Millisecond)
	return found
}

func (c *realCluster) answer(r *certificatesv1.PodCertificateRequest) {
	c.t.Helper()
	_, err := c.admin.CertificatesV1().PodCertificateRequests("default").UpdateStatus(c.t.Context(), r, metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

func condition(conditionType, reason, message string) []metav1.Condition {
	return []metav1.Condition{{
		Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}}
}

// A pod starts when its signer has issued a certificate, and says why it has none.
func TestKube_RealAPIServerPodCertificate(t *testing.T) {
	c := startRealCluster(t)
	_, err := c.admin.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.create(newCertifiedPod("issued"))
	r := c.requestOf("issued")
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	require.NoError(t, err)
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(2 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, ca)
	require.NoError(t, err)
	r.Status = certificatesv1.PodCertificateRequestStatus{
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        &metav1.Time{Time: now}, BeginRefreshAt: &metav1.Time{Time: now.Add(time.Hour)}, NotAfter: &metav1.Time{Time: now.Add(2 * time.Hour)},
		Conditions: condition(certificatesv1.PodCertificateRequestConditionTypeIssued, "Issued", "by the test"),
	}
	answeredAt := time.Now()
	c.answer(r)
	c.eventually("issued", isRunning)
	t.Logf("running %v after the certificate was issued", time.Since(answeredAt))

	c.create(newCertifiedPod("denied"))
	r = c.requestOf("denied")
	r.Status.Conditions = condition(certificatesv1.PodCertificateRequestConditionTypeDenied, "NotAllowed", "not for this pod")
	c.answer(r)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		events, err := c.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=denied"})
		if !assert.NoError(collect, err) {
			return
		}
		messages := map[string]string{}
		for _, e := range events.Items {
			messages[e.Reason] = e.Message
		}
		assert.Contains(collect, messages["Denied"], "Denied: NotAllowed: not for this pod")
		assert.Contains(collect, messages["FailedMount"], "Denied: NotAllowed: not for this pod")
	}, time.Minute, 100*time.Millisecond)
	require.Equal(t, corev1.PodPending, c.get("denied").Status.Phase)
	for _, name := range []string{"issued", "denied"} { // so that their volumes are unmounted
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
		c.eventually(name, isDeleted)
	}
}
