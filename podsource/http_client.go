package podsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// server is the source that HTTP returns.
type server struct {
	cfg      HTTPConfig
	location string // URL without secrets
}

// pollState is the state of one Watch of a server. One goroutine owns it.
type pollState struct {
	content
	etag, modified string // of the response with that content
	sum            string // of the response with that content
	complete       bool   // a response was valid
	err            *SourceError
}

// Watch implements Source.
func (s *server) Watch(ctx context.Context, deliver func(Set)) error {
	client := s.client()
	if s.cfg.Transport == nil {
		defer client.CloseIdleConnections()
	}
	tick := time.NewTicker(s.cfg.Period)
	defer tick.Stop()
	var a pollState
	for first := true; ; first = false {
		changed := s.poll(ctx, client, &a)
		if ctx.Err() != nil {
			return nil
		}
		if changed || first {
			deliver(a.set(s.location))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *pollState) set(location string) Set {
	out := Set{Objects: a.objects, Incomplete: !a.complete}
	for _, pod := range a.pods {
		out.Pods = append(out.Pods, Manifest{Pod: pod, Origin: location})
	}
	if a.err != nil {
		e := *a.err
		e.RetainedPod = a.onlyRetained()
		out.Errors = []SourceError{e}
	}
	return out
}

// effect describes what happens to the pods of the server while it is unavailable.
func (a *pollState) effect() string {
	if a.complete {
		return "known pods keep running"
	}
	return "running pods of this source keep running"
}

// poll sends one request and reports whether the set has changed.
func (s *server) poll(ctx context.Context, client *http.Client, a *pollState) (changed bool) {
	next, err := s.get(ctx, client, a)
	switch {
	case err != nil:
		isKnown := a.err != nil && a.err.Err.Error() == err.Error()
		if isKnown && (next == nil || next.sum == a.sum) {
			return false
		}
		if next == nil {
			next = &pollState{content: a.allRetained(), etag: a.etag, modified: a.modified}
		}
		next.complete, next.err = a.complete, a.err
		if !isKnown {
			next.err = &SourceError{Location: s.location, Err: err, Since: time.Now()}
		}
	case next == nil: // not modified
		if a.err == nil {
			return false
		}
		next = &pollState{content: a.content, etag: a.etag, modified: a.modified, complete: a.complete}
		next.retained = nil
	default:
		next.complete = true
	}
	*a = *next
	return true
}

// get sends one request and returns the new state, or nil if the response is not
// modified. With an error the state contains what could be decoded, or is nil.
func (s *server) get(ctx context.Context, client *http.Client, a *pollState) (*pollState, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, http.NoBody)
	if err != nil {
		return nil, errors.New("invalid URL")
	}
	for name, values := range s.cfg.Header {
		req.Header[name] = values
		if http.CanonicalHeaderKey(name) == "Host" && len(values) > 0 {
			req.Host = values[0]
		}
	}
	if a.etag != "" {
		req.Header.Set("If-None-Match", a.etag)
	} else if a.modified != "" {
		req.Header.Set("If-Modified-Since", a.modified)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: fetch manifests: %w; check server and URL; %s", ErrUnavailable, withoutURL(err), a.effect())
	}
	defer resp.Body.Close() //nolint:errcheck // everything needed has been read
	switch {
	case resp.StatusCode == http.StatusNotModified && a.etag+a.modified != "": // otherwise nothing was asked that this answers
		return nil, nil //nolint:nilnil // not modified is not an error, see the doc comment
	case resp.StatusCode == http.StatusOK:
	default:
		return nil, fmt.Errorf("%w: fetch manifests: server responded %d %s; %s",
			ErrUnavailable, resp.StatusCode, http.StatusText(resp.StatusCode), a.effect())
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, int64(s.cfg.MaxBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("%w: read response: %w; %s", ErrUnavailable, withoutURL(err), a.effect())
	}
	if len(data) > s.cfg.MaxBytes {
		return nil, fmt.Errorf("response exceeds %d bytes: %w", s.cfg.MaxBytes, podspec.ErrTooLarge)
	}
	opt := podspec.DecodeOptions{Lenient: s.cfg.Lenient, MaxBytes: s.cfg.MaxBytes}
	next := pollState{sum: checksum(data)}
	if next.content, err = parse(data, opt, a.content); err == nil {
		// An invalid response must be fetched again even if it is not modified.
		next.etag, next.modified = resp.Header.Get("ETag"), lastModified(resp.Header, time.Now())
	}
	return &next, err
}

// modifiedGranularity is how old a change must be for its time, which has whole seconds, to be that of no later one.
const modifiedGranularity = 2 * time.Second

// lastModified returns the time of the last change, for the condition of the next request. It is empty if the response is
// from about the second of that change: another change may have followed, of which the server would say that it is none.
func lastModified(h http.Header, now time.Time) string {
	modified := h.Get("Last-Modified")
	at, err := http.ParseTime(modified)
	if err != nil {
		return modified // it means something to the server only
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	if now.Sub(at) < modifiedGranularity {
		return ""
	}
	return modified
}

// withoutURL removes the URL from errors of package net/http, whose query may be secret, and the local address of a
// connection and the time of the attempt, by which one outage would be a new error at each attempt.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	text := currentTime.ReplaceAllString(localAddress.ReplaceAllString(err.Error(), ""), "now")
	if text != err.Error() {
		return &connectionError{text, err}
	}
	return err
}

var (
	// localAddress is how package net writes the local end of a connection.
	localAddress = regexp.MustCompile(`[^ ]+:[0-9]+->`)
	// currentTime is how package x509 writes when it has found a certificate expired.
	currentTime = regexp.MustCompile(`current time [^ ]+`)
)

// connectionError is an error with another text.
type connectionError struct {
	text string
	err  error
}

func (e *connectionError) Error() string { return e.text }
func (e *connectionError) Unwrap() error { return e.err }
