package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// maxRedirects is how often a probe follows an answer to another path.
const maxRedirects = 10

// newHTTPClient returns the client of all HTTP probes. Each probe makes its own
// connection, since the point is whether that can be done. A pod's certificate
// says nothing to a node and is not verified. Proxies are for others.
func newHTTPClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: stayOnHost,
	}
}

// stayOnHost follows redirects within the host that was asked. One that points
// elsewhere is taken as the answer: whoever runs in the pod must not choose what
// the node connects to.
func stayOnHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("redirected %d times", maxRedirects)
	}
	return nil
}

func (m *Manager) get(ctx context.Context, t target, a *corev1.HTTPGetAction) probeOutcome {
	req, err := m.request(ctx, t, a)
	if err != nil {
		return unknown(err)
	}
	res, err := m.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which may have been given a password
		}
		return failed("%s", unreached(ctx, err, t))
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	// An answer counts once it is there, or as much of it as anybody will read.
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, limit)); err != nil {
		return failed("%s", unreached(ctx, err, t))
	}
	switch {
	case res.StatusCode < 200 || res.StatusCode >= 400:
		return failed("status %d", res.StatusCode)
	case res.StatusCode >= 300 && res.Header.Get("Location") != "":
		return probeOutcome{runtime.ProbeSuccess, fmt.Sprintf("status %d leads to another host, which is not asked", res.StatusCode)}
	default:
		return succeeded()
	}
}

func (m *Manager) request(ctx context.Context, t target, a *corev1.HTTPGetAction) (*http.Request, error) {
	address, err := t.address(a.Host, a.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path} // taken as it is written
	}
	scheme := strings.ToLower(string(a.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	u = &url.URL{Scheme: scheme, Host: address, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
		u.RawPath = ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", a.Path, err)
	}
	for _, h := range a.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", m.cfg.UserAgent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	}
	return req, nil
}
