package podsource

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Defaults of HTTPConfig.
const (
	defaultInterval = 20 * time.Second
	defaultTimeout  = 10 * time.Second
)

// HTTPConfig describes a source that polls a server.
type HTTPConfig struct {
	// URL is requested with GET; the response has the format of a manifest file.
	// User and password in it are sent. Required; http or https.
	URL string

	Header   http.Header   // sent with each request
	Period   time.Duration // between requests. Default: 20s
	Timeout  time.Duration // of one request with its response. Default: 10s
	MaxBytes int           // of one response, uncompressed. Default: 10 MiB
	TLS      *tls.Config   // Default: that of package tls
	Lenient  bool          // ignore unknown and duplicate fields

	// AllowOtherHosts allows redirects to other hosts. Header is not sent to them.
	// Redirects from https to http are always rejected.
	AllowOtherHosts bool

	// Transport replaces the default transport, which uses one connection. TLS must
	// then be nil.
	Transport http.RoundTripper
}

// HTTP returns a source of the pods that a server returns. It polls the server at once
// and then every Period, with conditional requests if the server sets ETag or
// Last-Modified. Unless a response has status 200 and is valid, the known pods stay
// and a SourceError is reported. Only an empty list removes all pods. HTTP does no I/O
// until the source is watched.
//
// The source saves nothing. An agent that starts while the server is unavailable
// leaves running pods alone and starts none. Use Cached to start from the last response.
func HTTP(cfg HTTPConfig) (Source, error) {
	u, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &server{cfg: cfg, location: redacted(u)}, nil
}

// complete validates the config and sets defaults.
func (c *HTTPConfig) complete() (*url.URL, error) {
	var errs []error
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		// The error of package url quotes the URL, which may contain a password.
		errs = append(errs, errors.New("podsource: HTTPConfig.URL: invalid URL"))
	case u.Scheme != "http" && u.Scheme != "https":
		errs = append(errs, fmt.Errorf("podsource: HTTPConfig.URL: scheme %q must be http or https", u.Scheme))
	case u.Host == "":
		errs = append(errs, errors.New("podsource: HTTPConfig.URL: host required"))
	}
	for name, v := range map[string]int64{"Period": int64(c.Period), "Timeout": int64(c.Timeout), "MaxBytes": int64(c.MaxBytes)} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("podsource: HTTPConfig.%s: must not be negative", name))
		}
	}
	if c.Transport != nil && c.TLS != nil {
		errs = append(errs, errors.New("podsource: HTTPConfig: TLS and Transport are mutually exclusive"))
	}
	if c.Period == 0 {
		c.Period = defaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	c.Header = c.Header.Clone()
	return u, errors.Join(errs...)
}

// redacted returns the URL for errors and origins, without user, password and query,
// which may be secret.
func redacted(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// client returns the HTTP client. The caller closes its connections.
func (s *server) client() *http.Client {
	transport := s.cfg.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        s.cfg.TLS.Clone(),
			ForceAttemptHTTP2:      true,
			MaxConnsPerHost:        1,
			MaxIdleConns:           1,
			IdleConnTimeout:        2 * s.cfg.Period,
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &http.Client{Transport: transport, CheckRedirect: s.redirect}
}

// redirect rejects redirects that the configuration does not allow.
func (s *server) redirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= 10:
		return errors.New("redirected more than 10 times")
	case first.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("redirected from https to " + next.URL.Scheme)
	case !s.cfg.AllowOtherHosts && !strings.EqualFold(first.Host, next.URL.Host):
		return fmt.Errorf("redirected to another host, %s; use it in the URL or set AllowOtherHosts", next.URL.Host)
	case !strings.EqualFold(first.Host, next.URL.Host):
		// Package net/http removes only headers that it knows to be secret, and adds the URL.
		for name := range s.cfg.Header {
			delete(next.Header, name) // in any notation
		}
		next.Header.Del("Referer")
	}
	return nil
}
