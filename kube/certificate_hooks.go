package kube

import (
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"

	"github.com/sublet-dev/agent/internal/safe"
)

// CertificateHooks observe the renewal of a certificate. Each may be nil and must not block. A panic in one is logged.
type CertificateHooks struct {
	// RenewalFailed is called after each failed try to get a certificate.
	RenewalFailed func()
	// Renewed is called after a certificate took the place of another one, which was valid since age ago.
	Renewed func(age time.Duration)
}

// failures returns what a certificate.Manager counts failures with, nil without a hook.
func (h CertificateHooks) failures(log *slog.Logger) certificate.Counter {
	if h.RenewalFailed == nil {
		return nil
	}
	return counterFunc(func() { safe.Do(log, "RenewalFailed", h.RenewalFailed) })
}

// rotations returns what a certificate.Manager reports replaced certificates to, nil without a hook.
func (h CertificateHooks) rotations(log *slog.Logger) certificate.Histogram {
	if h.Renewed == nil {
		return nil
	}
	return histogramFunc(func(seconds float64) {
		safe.Do(log, "Renewed", func() { h.Renewed(time.Duration(seconds * float64(time.Second))) })
	})
}

type (
	counterFunc   func()
	histogramFunc func(float64)
)

func (f counterFunc) Inc()                { f() }
func (f histogramFunc) Observe(v float64) { f(v) }

// ClientCertificateExpiry returns when the client certificate of cfg expires, which it reads again if it is in a file. The time
// is zero if there is none or it cannot be read.
func ClientCertificateExpiry(cfg *rest.Config) time.Time {
	cert, err := clientCertificate(cfg)
	if err != nil || cert == nil {
		return time.Time{}
	}
	return cert.NotAfter
}

// Expiry returns when the certificate expires; zero: none is signed yet.
func (s *ServingCertificate) Expiry() time.Time {
	cert, err := s.GetCertificate(nil)
	if err != nil || cert.Leaf == nil {
		return time.Time{}
	}
	return cert.Leaf.NotAfter
}

// MirrorPods returns the number of mirror pods that this node has in the API server.
func (k *Kube) MirrorPods() int {
	pods, _ := k.store.mirrors()
	return len(pods)
}
