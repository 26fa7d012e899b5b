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

// Defaults of HTTP.
const (
	DefaultInterval = 20 * time.Second
	DefaultTimeout  = 10 * time.Second
)

// HTTPConfig describes a source that asks a server.
type HTTPConfig struct {
	// URL is asked with GET and answers as a manifest file would read. A user and
	// password in it are sent along. Required; http or https.
	URL string

	Header   http.Header   // sent with each request
	Period   time.Duration // between requests; default 20 s
	Timeout  time.Duration // of one request with its answer; default 10 s
	MaxBytes int           // of one answer, unpacked; default 10 MiB
	TLS      *tls.Config   // default: that of package tls
	Lenient  bool          // pass over unknown and repeated fields

	// AllowOtherHosts lets the server redirect to other hosts. Header is not sent to
	// them where it may hold credentials. From https to http is always refused.
	AllowOtherHosts bool

	// Transport replaces the source's own, which uses no more than one
	// connection. TLS must be nil then.
	Transport http.RoundTripper
}

// HTTP returns a source of the pods that a server names. It asks at once and
// then at each interval, and only for what changed where the server gives an
// ETag or Last-Modified. While the server does not answer with status 200 and
// something that can be read as a whole, the pods known from it stay, and the
// fault is told. Only a list without items ends all pods. It does no I/O until
// it is watched.
//
// It keeps nothing over the end of the process: an agent that starts while the
// server is away leaves alone what runs, and starts nothing. Cached(source, dir) keeps
// the last answer on disk and starts from it.
func HTTP(cfg HTTPConfig) (Source, error) {
	u, err := cfg.fill()
	if err != nil {
		return nil, err
	}
	return &server{cfg: cfg, where: whereof(u)}, nil
}

func (c *HTTPConfig) fill() (*url.URL, error) {
	var errs []error
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		// The error of package url quotes what may hold a password.
		errs = append(errs, errors.New("podsource: URL of manifests: cannot be parsed"))
	case u.Scheme != "http" && u.Scheme != "https":
		errs = append(errs, fmt.Errorf("podsource: URL of manifests: scheme %q, want http or https", u.Scheme))
	case u.Host == "":
		errs = append(errs, errors.New("podsource: URL of manifests: no host"))
	}
	for name, v := range map[string]int64{"Interval": int64(c.Period), "Timeout": int64(c.Timeout), "MaxBytes": int64(c.MaxBytes)} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("podsource: %s of manifests' URL is negative", name))
		}
	}
	if c.Transport != nil && c.TLS != nil {
		errs = append(errs, errors.New("podsource: both TLS and Transport are given for manifests' URL"))
	}
	if c.Period == 0 {
		c.Period = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	c.Header = c.Header.Clone()
	return u, errors.Join(errs...)
}

// whereof names a URL in faults and origins, without what may be secret: user,
// password and query.
func whereof(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// client returns what requests are sent with. It is the caller's to close.
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

// redirect refuses to follow to where the configuration did not point.
func (s *server) redirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= 10:
		return errors.New("redirected more than 10 times")
	case first.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("redirected from https to " + next.URL.Scheme)
	case !s.cfg.AllowOtherHosts && !strings.EqualFold(first.Host, next.URL.Host):
		return fmt.Errorf("redirected to another host, %s; name it in the URL or allow other hosts", next.URL.Host)
	case !strings.EqualFold(first.Host, next.URL.Host):
		// Package net/http leaves out only the headers that it knows to be secret.
		for name := range s.cfg.Header {
			next.Header.Del(name)
		}
	}
	return nil
}
