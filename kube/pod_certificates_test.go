package kube

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
)

// signerBench is a node whose requests for certificates the test answers.
type signerBench struct {
	*objectsBench
	requests []*certificatesv1.PodCertificateRequest
	requeued chan types.UID
}

// requeuing is a nodeAgent that tells which pods are synced.
type requeuing struct{ uids chan types.UID }

func (r requeuing) Resend(types.UID)              {}
func (r requeuing) Requeue(uid types.UID)         { r.uids <- uid }
func (r requeuing) Pods() ([]*corev1.Pod, bool)   { return nil, false }
func (r requeuing) MayBeDesired(*corev1.Pod) bool { return false }

func startPodSigner(t *testing.T, dir string) *signerBench {
	s := &signerBench{requeued: make(chan types.UID, 100)}
	s.objectsBench = startObjects(t, dir, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa", UID: "uid-sa"}})
	s.objects.k.setAgent(requeuing{s.requeued})
	s.client.PrependReactor("create", "podcertificaterequests", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r, _ := a.(k8stesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		r = r.DeepCopy()
		r.Name = fmt.Sprint(r.GenerateName, len(s.requests))
		s.requests = append(s.requests, r)
		return true, r, s.client.Tracker().Add(r)
	})
	s.run()
	s.setPods(podOf())
	return s
}

func (s *signerBench) get(p corev1.PodCertificateProjection) (key, chain []byte, err error) {
	return s.objects.PodCertificate(s.t.Context(), podOf(), &p)
}

// sign returns a chain of a certificate for the key of a request, with comments between.
func (s *signerBench) sign(r *certificatesv1.PodCertificateRequest) string {
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	require.NoError(s.t, err)
	require.NoError(s.t, csr.CheckSignature())
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(s.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: r.Name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, ca)
	require.NoError(s.t, err)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"Comment": "leaf"}, Bytes: der})
	return "a comment\n" + string(block) + "another\n" + string(block)
}

// answer sets the status of a request.
func (s *signerBench) answer(r *certificatesv1.PodCertificateRequest, status certificatesv1.PodCertificateRequestStatus) {
	s.t.Helper()
	answered := r.DeepCopy()
	answered.Status = status
	_, err := s.client.CertificatesV1().PodCertificateRequests(r.Namespace).UpdateStatus(s.t.Context(), answered, metav1.UpdateOptions{})
	require.NoError(s.t, err)
	synctest.Wait()
}

func (s *signerBench) issue(r *certificatesv1.PodCertificateRequest) {
	s.t.Helper()
	now := time.Now()
	s.answer(r, certificatesv1.PodCertificateRequestStatus{
		CertificateChain: s.sign(r), NotBefore: &metav1.Time{Time: now}, BeginRefreshAt: &metav1.Time{Time: now.Add(30 * time.Minute)},
		NotAfter:   &metav1.Time{Time: now.Add(time.Hour)},
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue}},
	})
}

func (s *signerBench) reject(r *certificatesv1.PodCertificateRequest, condition string) {
	s.t.Helper()
	s.answer(r, certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{
		{Type: condition, Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "use ED25519"},
	}})
}

func ed25519Projection() corev1.PodCertificateProjection {
	return corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519"}
}

func TestObjects_PodCertificateOfEachKeyType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startPodSigner(t, "")
		seconds := int32(7200)
		for i, keyType := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
			p := corev1.PodCertificateProjection{
				SignerName: "example.com/s", KeyType: keyType, MaxExpirationSeconds: &seconds, UserAnnotations: map[string]string{"example.com/a": "b"},
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				key, chain, err := s.get(p)
				assert.NoError(t, err, keyType)
				_, err = tls.X509KeyPair(chain, key)
				assert.NoError(t, err, keyType)
				assert.Equal(t, 2, bytes.Count(chain, []byte("BEGIN CERTIFICATE")))
				assert.NotContains(t, string(chain), "omment", "only the blocks are kept")
			}()
			synctest.Wait()
			require.Len(t, s.requests, i+1)
			r := s.requests[i]
			proof := r.Spec.StubPKCS10Request
			r.Spec.StubPKCS10Request = nil
			assert.Equal(t, certificatesv1.PodCertificateRequestSpec{
				SignerName: "example.com/s", PodName: "p", PodUID: "uid", ServiceAccountName: "sa", ServiceAccountUID: "uid-sa", NodeName: "n", NodeUID: "uid-n",
				MaxExpirationSeconds: &seconds, UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
			}, r.Spec)
			assert.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid"}}, r.OwnerReferences)
			r.Spec.StubPKCS10Request = proof
			s.issue(r)
			<-done
			assert.Equal(t, types.UID("uid"), <-s.requeued, "the pod is synced at once")
		}
		_, _, err := s.get(corev1.PodCertificateProjection{KeyType: "DSA"})
		require.EqualError(t, err, `unknown key type "DSA"`)
	})
}

// KU-10: there is always one certificate, the newest.
func TestObjects_PodCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := startPodSigner(t, dir)
		get := func() string {
			key, _, err := s.get(ed25519Projection())
			require.NoError(t, err)
			return string(key)
		}
		_, _, err := s.get(ed25519Projection())
		require.EqualError(t, err, "PodCertificateRequest default/req-0: the signer has not answered yet")
		assert.NotContains(t, err.Error(), "KEY")
		s.issue(s.requests[0])
		first := get()
		s.wait(30*time.Minute - time.Second)
		assert.Equal(t, first, get())
		assert.Len(t, s.requests, 1, "it is not due")

		s.wait(maxRefreshDelay + 2*time.Second)
		assert.Equal(t, first, get(), "the old one until there is a new one")
		assert.Equal(t, first, get())
		require.Len(t, s.requests, 2, "one request at a time")
		s.reject(s.requests[1], certificatesv1.PodCertificateRequestConditionTypeFailed)
		assert.Equal(t, first, get())
		assert.Len(t, s.requests, 2, "not at once again")
		s.wait(refreshRetry)
		assert.Equal(t, first, get())
		require.Len(t, s.requests, 3)
		s.issue(s.requests[2])
		second := get()
		assert.NotEqual(t, first, second, "a new key")
		s.stop()

		s = startPodSigner(t, dir)
		assert.Equal(t, second, get(), "from disk")
		assert.Empty(t, s.requests)
		s.wait(time.Hour)
		back := s.unreachable()
		assert.Equal(t, second, get(), "while the API server does not answer")
		assert.Contains(t, s.log.String(), "pod certificate not renewed")
		back()
		s.wait(objectTimeout)
		get()
		assert.Len(t, s.requests, 1)
		info, err := os.Stat(filepath.Join(dir, certificateKey{"uid", "x"}.file()))
		require.ErrorIs(t, err, os.ErrNotExist, info)
		files, err := filepath.Glob(filepath.Join(dir, certificatePrefix+"uid_*.json"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		info, err = os.Stat(files[0])
		require.NoError(t, err)
		assert.EqualValues(t, 0o600, info.Mode().Perm())
		s.setPods()
		s.wait(2 * sweepPeriod)
		require.NoFileExists(t, files[0], "no pod uses it")
		assert.Empty(t, s.objects.certs.all)
	})
}

// KU-10: a denial is final, and reported.
func TestObjects_PodCertificateRejected(t *testing.T) {
	for _, condition := range []string{certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed} {
		synctest.Test(t, func(t *testing.T) {
			s := startPodSigner(t, "")
			_, _, err := s.get(ed25519Projection())
			require.Error(t, err)
			s.reject(s.requests[0], condition)
			want := "PodCertificateRequest default/req-0: " + condition + ": UnsupportedKeyType: use ED25519"
			for range 3 {
				_, _, err = s.get(ed25519Projection())
				require.EqualError(t, err, want)
				s.wait(time.Hour)
			}
			assert.Len(t, s.requests, 1, "it is final")
			s.objects.k.events.mu.Lock()
			defer s.objects.k.events.mu.Unlock()
			require.Len(t, s.objects.k.events.queue, 1)
			e := s.objects.k.events.queue[0]
			assert.Equal(t, []string{condition, want, "p"}, []string{e.Reason, e.Message, e.InvolvedObject.Name})
		})
	}
}

func TestObjects_PodCertificateIsChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*certificatesv1.PodCertificateRequestStatus)
		says   string
	}{
		"no certificate":    {func(st *certificatesv1.PodCertificateRequestStatus) { st.CertificateChain = "nothing" }, "failed to find any PEM data in certificate input"},
		"no times":          {func(st *certificatesv1.PodCertificateRequestStatus) { st.BeginRefreshAt = nil }, "beginRefreshAt and notAfter required"},
		"for another key":   {func(*certificatesv1.PodCertificateRequestStatus) {}, "private key"},
		"no time of expiry": {func(st *certificatesv1.PodCertificateRequestStatus) { st.NotAfter = nil }, "beginRefreshAt and notAfter required"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startPodSigner(t, "")
				other := ed25519Projection()
				other.KeyPath = "other"
				_, _, _ = s.get(ed25519Projection())
				_, _, _ = s.get(other)
				require.Len(t, s.requests, 2)
				now := &metav1.Time{Time: time.Now()}
				st := certificatesv1.PodCertificateRequestStatus{
					CertificateChain: s.sign(s.requests[1]), NotBefore: now, BeginRefreshAt: now, NotAfter: now,
					Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued}},
				}
				tc.change(&st)
				s.answer(s.requests[0], st)
				_, _, err := s.get(ed25519Projection())
				require.ErrorContains(t, err, "InvalidCertificate: ")
				require.ErrorContains(t, err, tc.says)
			})
		})
	}
}

func TestObjects_PodCertificateErrors(t *testing.T) {
	resource := schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
	for name, tc := range map[string]struct {
		verb, resource string
		err            error
		says           string
	}{
		"not served": {
			"create", "podcertificaterequests", apierrors.NewGenericServerResponse(404, "create", resource, "", "404 page not found", 0, true),
			"the API server does not serve PodCertificateRequests of certificates.k8s.io/v1; Kubernetes 1.37 does",
		},
		"no pod":             {"create", "podcertificaterequests", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p"), `create pod certificate request: pods "p" not found`},
		"no node":            {"get", "nodes", errors.New("connection refused"), "get node: connection refused"},
		"no service account": {"get", "serviceaccounts", errors.New("connection refused"), "get service account: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startPodSigner(t, "")
				back := s.fail(tc.verb, tc.resource, tc.err)
				_, _, err := s.get(ed25519Projection())
				require.EqualError(t, err, tc.says)
				assert.Zero(t, s.count("list", "podcertificaterequests"), "nothing is watched before there is a request")
				back()
				_, _, err = s.get(ed25519Projection())
				require.ErrorContains(t, err, "not answered yet", "it is tried again")
			})
		})
	}
}

// A request that was deleted before it had an answer is replaced by another.
func TestObjects_PodCertificateRequestIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startPodSigner(t, "")
		_, _, _ = s.get(ed25519Projection())
		require.NoError(t, s.client.CertificatesV1().PodCertificateRequests("default").Delete(t.Context(), "req-0", metav1.DeleteOptions{}))
		_, _, _ = s.get(ed25519Projection())
		assert.Len(t, s.requests, 1)
		s.wait(requestLostAge)
		_, _, _ = s.get(ed25519Projection())
		assert.Len(t, s.requests, 2)
	})
}

// A certificate that is not renewed in time is reported once, and once when it has expired.
func TestObjects_PodCertificateIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startPodSigner(t, "")
		_, _, err := s.get(ed25519Projection())
		require.Error(t, err)
		s.issue(s.requests[0])
		for range 20 {
			_, _, err = s.get(ed25519Projection())
			require.NoError(t, err)
			s.wait(5 * time.Minute)
		}
		s.objects.k.events.mu.Lock()
		defer s.objects.k.events.mu.Unlock()
		var reasons []string
		for _, e := range s.objects.k.events.queue {
			reasons = append(reasons, e.Reason)
		}
		assert.Equal(t, []string{"CertificateOverdueForRefresh", "CertificateExpired"}, reasons)
	})
}
