package kube

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podCertificateRequest is a request that was created and has no result yet.
type podCertificateRequest struct {
	name      string // namespace/name
	key       []byte // PKCS #8 in PEM; it leaves the node only in volumes of the pod
	createdAt time.Time
}

// newPrivateKey makes a key of a type of the API.
func newPrivateKey(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("unknown key type %q", keyType)
}

// request makes a key and creates the request of a certificate for it. What proves that
// the node has the key is an empty certificate signing request.
func (c *podCertificates) request(ctx context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (*podCertificateRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key, err := newPrivateKey(p.KeyType)
	if err != nil {
		return nil, err
	}
	proof, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate request: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	nodeUID, accountUID, err := c.identity(ctx, pod)
	if err != nil {
		return nil, err
	}
	created, err := c.k.cfg.Client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: pod.Spec.ServiceAccountName,
			ServiceAccountUID: accountUID, NodeName: types.NodeName(c.k.cfg.NodeName), NodeUID: nodeUID,
			MaxExpirationSeconds: p.MaxExpirationSeconds, StubPKCS10Request: proof, UnverifiedUserAnnotations: p.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if isNotServed(err) {
		return nil, errors.New("the API server does not serve PodCertificateRequests of certificates.k8s.io/v1; Kubernetes 1.37 does")
	}
	if err != nil {
		return nil, fmt.Errorf("create pod certificate request: %w", err)
	}
	return &podCertificateRequest{
		name: created.Namespace + "/" + created.Name, createdAt: time.Now(),
		key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}, nil
}

// identity returns the UIDs that the API server compares with its own.
func (c *podCertificates) identity(ctx context.Context, pod *corev1.Pod) (node, account types.UID, err error) {
	n, err := c.k.cfg.Client.CoreV1().Nodes().Get(ctx, c.k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("get node: %w", err)
	}
	a, err := c.k.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("get service account: %w", err)
	}
	return n.UID, a.UID, nil
}

// isNotServed reports whether the API server does not know the resource, as opposed to an
// object of it.
func isNotServed(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// refusalError is the end of a request without a certificate.
type refusalError struct {
	name            string // of the request
	condition       string // its type
	reason, message string // of the condition; by the signer
}

// Error implements error.
func (e *refusalError) Error() string {
	return fmt.Sprintf("PodCertificateRequest %s: %s: %s: %s", e.name, e.condition, e.reason, e.message)
}

// result returns the certificate of a request, a *refusalError, or nil while there is
// neither.
func (r *podCertificateRequest) result(object *certificatesv1.PodCertificateRequest) (*podCertificate, error) {
	for i := range object.Status.Conditions {
		switch condition := &object.Status.Conditions[i]; condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
			return nil, &refusalError{r.name, condition.Type, condition.Reason, condition.Message}
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			return r.issued(&object.Status)
		}
	}
	return nil, nil
}

func (r *podCertificateRequest) issued(status *certificatesv1.PodCertificateRequestStatus) (*podCertificate, error) {
	invalid := func(message string) error {
		return &refusalError{r.name, certificatesv1.PodCertificateRequestConditionTypeFailed, "InvalidCertificate", message}
	}
	if status.BeginRefreshAt == nil || status.NotAfter == nil {
		return nil, invalid("beginRefreshAt and notAfter required")
	}
	var chain []byte // without what is between the blocks, and without their headers
	for block, rest := pem.Decode([]byte(status.CertificateChain)); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if _, err := tls.X509KeyPair(chain, r.key); err != nil {
		return nil, invalid(err.Error())
	}
	return &podCertificate{
		Key: r.key, Chain: chain, RefreshAt: status.BeginRefreshAt.Time, NotAfter: status.NotAfter.Time,
	}, nil
}
