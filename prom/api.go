package prom

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// apiMetrics are about the API server, and the certificates that it signs.
type apiMetrics struct {
	requests                   *prometheus.CounterVec
	duration                   *prometheus.HistogramVec
	clientErrors, serverErrors prometheus.Counter
	rotation                   prometheus.Histogram
}

func newAPI() apiMetrics {
	const day = 24 * 3600
	return apiMetrics{
		requests: counters("rest_client_requests_total", "Requests to the API server, by status code, method and host.", "code", "method", "host"),
		duration: histograms("rest_client_request_duration_seconds", "Time until the API server has begun to respond to a request, by verb and host. Watches are left out.",
			buckets{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0}, "verb", "host"),
		clientErrors: counter("kubelet_certificate_manager_client_expiration_renew_errors", "Failed renewals of the client certificate."),
		serverErrors: counter("kubelet_server_expiration_renew_errors", "Failed renewals of the serving certificate."),
		rotation: histogram("kubelet_certificate_manager_server_rotation_seconds", "Age of the serving certificate when it was replaced.",
			buckets{60, 3600, 14400, day, 7 * day, 30 * day, 90 * day, 180 * day, 365 * day, 4 * 360 * day}),
	}
}

func (a *apiMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{a.requests, a.duration, a.clientErrors, a.serverErrors, a.rotation}
}

// WrapTransport counts the requests of a client of the API server. It is for the method Wrap of its rest.Config.
func (m *Metrics) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return transport{next, &m.api}
}

type transport struct {
	next http.RoundTripper
	api  *apiMetrics
}

// WrappedRoundTripper lets client-go find the transport below.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	startTime, code := time.Now(), "<error>"
	response, err := t.next.RoundTrip(req)
	if response != nil {
		code = strconv.Itoa(response.StatusCode)
	}
	host := req.URL.Host
	t.api.requests.WithLabelValues(code, req.Method, host).Inc()
	if !strings.Contains(req.URL.RawQuery, "watch=true") {
		t.api.duration.WithLabelValues(req.Method, host).Observe(time.Since(startTime).Seconds())
	}
	return response, err
}

// ClientCertificateFailed is the hook for kube.CertificateHooks.RenewalFailed of the client certificate.
func (m *Metrics) ClientCertificateFailed() { m.api.clientErrors.Inc() }

// ServingCertificateFailed is the hook for kube.CertificateHooks.RenewalFailed of the serving certificate.
func (m *Metrics) ServingCertificateFailed() { m.api.serverErrors.Inc() }

// ServingCertificateRenewed is the hook for kube.CertificateHooks.Renewed of the serving certificate.
func (m *Metrics) ServingCertificateRenewed(age time.Duration) { m.api.rotation.Observe(age.Seconds()) }
