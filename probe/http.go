package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/podnet"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// maxRedirects is the maximum number of redirects that a probe follows.
const maxRedirects = 10

// newHTTPClient returns the client of all HTTP probes.
func newHTTPClient(dial safe.Dialer) *http.Client {
	return &http.Client{Transport: podnet.NewTransport(dial), CheckRedirect: stayOnHost}
}

// stayOnHost follows redirects to the same host. A redirect to another host is the
// response: a container must not choose what the node connects to.
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
	req, err := t.network().NewRequest(ctx, a, m.cfg.UserAgent)
	if err != nil {
		return unknown(err)
	}
	res, err := m.http.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which may contain a password
		}
		return failed("%s", connectionError(ctx, err, t))
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	// The response counts when it was received, up to the limit.
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		return failed("%s", connectionError(ctx, err, t))
	}
	switch {
	case res.StatusCode < 200 || res.StatusCode >= 400:
		return failed("status %d", res.StatusCode)
	case res.StatusCode >= 300 && res.Header.Get("Location") != "":
		// The kubelet's words, which clients look for in events.
		return probeOutcome{runtime.ProbeSuccess, "Probe terminated redirects, Response body: " + text(body)}
	default:
		return succeeded()
	}
}
