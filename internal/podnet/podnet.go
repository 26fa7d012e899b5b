// Package podnet addresses the ports of pods, for probes and lifecycle hooks.
package podnet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/safe"
)

// ErrNoIP is the error of an action without a host for a pod without an address.
var ErrNoIP = errors.New("pod has no IP")

// Container is a container as its probes and hooks reach it.
type Container struct {
	Name  string
	PodIP string // "" if unknown
	Ports []corev1.ContainerPort
}

// Address returns the address to connect to: the pod, unless a host is given, and the
// port by number or by its name in the container.
func (c *Container) Address(host string, port intstr.IntOrString) (string, error) {
	number, err := c.port(port)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = c.PodIP
	}
	if host == "" {
		return "", ErrNoIP
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(number)), nil
}

func (c *Container) port(port intstr.IntOrString) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("container %s has no port %s", c.Name, port.String())
	}
	return number, nil
}

// NewRequest returns the request of an httpGet action, as a kubelet makes it. A path may
// have a query. One that cannot be parsed is used as it is, and no path names another host.
// A header that is set to nothing is not sent. With NewTransport, its connection is given up with ctx.
func (c *Container) NewRequest(ctx context.Context, a *corev1.HTTPGetAction, userAgent string) (*http.Request, error) {
	address, err := c.Address(a.Host, a.Port)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path}
	}
	scheme := cmp.Or(strings.ToLower(string(a.Scheme)), "http")
	if scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("invalid scheme %q", a.Scheme)
	}
	u = &url.URL{Scheme: scheme, Host: address, Path: u.Path, RawPath: u.RawPath, ForceQuery: u.ForceQuery, RawQuery: u.RawQuery}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path, u.RawPath = "/"+u.Path, "/"+u.RawPath // that of a path without one is invalid, and ignored
	}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, requestKey{}, ctx), http.MethodGet, u.String(), nil)
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
	for name, value := range map[string]string{"User-Agent": userAgent, "Accept": "*/*"} {
		if _, ok := req.Header[name]; !ok {
			req.Header.Set(name, value)
		}
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	return req, nil
}

// requestKey is the key of the context of a request in that of its connection.
type requestKey struct{}

// NewTransport returns a transport for requests of NewRequest. Each makes a connection of its own, because whether that
// succeeds is a part of the result, and gives it up when the request ends. Certificates of pods are not verified, as nodes
// have no CA for them, and proxies are not used. HTTPS servers may have nothing but HTTP/2, which is off by default for a
// transport with a TLS configuration.
func NewTransport(dial safe.Dialer) *http.Transport {
	return &http.Transport{
		DialContext:            endsWithRequest(dial),
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		ForceAttemptHTTP2:      true,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// endsWithRequest returns a dialer that gives up with the request. A transport goes on to connect when one has ended, for
// others that might come: for two minutes by the kernel's default, where nothing answers, while probes come every second.
// Its error is then that of the request: a transport may return it before it finds that out itself.
func endsWithRequest(dial safe.Dialer) safe.Dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		request, ok := ctx.Value(requestKey{}).(context.Context)
		if !ok {
			return dial(ctx, network, address)
		}
		both, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(request, cancel)()
		conn, err := dial(both, network, address)
		if ended := request.Err(); err != nil && ended != nil {
			err = ended
		}
		return conn, err
	}
}
