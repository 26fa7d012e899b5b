package podsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// server is the source that HTTP returns.
type server struct {
	cfg   HTTPConfig
	where string
}

// answers is what one Watch of a server knows. One goroutine owns it.
type answers struct {
	content
	etag, modified string // of the answer that content was made from
	whole          bool   // one could be read as a whole
	fault          *SourceError
}

// Watch fulfils Source.
func (s *server) Watch(ctx context.Context, hand func(Set)) error {
	client := s.client()
	if s.cfg.Transport == nil {
		defer client.CloseIdleConnections()
	}
	tick := time.NewTicker(s.cfg.Period)
	defer tick.Stop()
	var a answers
	for first := true; ; first = false {
		changed := s.ask(ctx, client, &a)
		if ctx.Err() != nil {
			return nil
		}
		if changed || first {
			hand(a.set(s.where))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *answers) set(where string) Set {
	out := Set{Objects: a.objects, Incomplete: !a.whole}
	for _, pod := range a.pods {
		out.Pods = append(out.Pods, Manifest{Pod: pod, Origin: where})
	}
	if a.fault != nil {
		fault := *a.fault
		fault.RetainedPod = a.only()
		out.Errors = []SourceError{fault}
	}
	return out
}

// meanwhile says what becomes of the server's pods while it does not answer.
func (a *answers) meanwhile() string {
	if a.whole {
		return "pods known from it run on"
	}
	return "what runs of it is left alone until it answers"
}

// ask asks once, and reports whether there is something new to tell.
func (s *server) ask(ctx context.Context, client *http.Client, a *answers) (changed bool) {
	next, err := s.get(ctx, client, a)
	switch {
	case err != nil:
		if a.fault != nil && a.fault.Err.Error() == err.Error() {
			return false
		}
		if next == nil {
			next = &answers{content: a.all(), etag: a.etag, modified: a.modified}
		}
		next.whole = a.whole
		next.fault = &SourceError{Location: s.where, Err: err, Since: time.Now()}
	case next == nil: // as before
		if a.fault == nil {
			return false
		}
		next = &answers{content: a.content, etag: a.etag, modified: a.modified, whole: a.whole}
		next.kept = nil
	default:
		next.whole = true
	}
	*a = *next
	return true
}

// get returns the answer to one request, or nil if it is as before. With an
// error it returns what could be read.
func (s *server) get(ctx context.Context, client *http.Client, a *answers) (*answers, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, http.NoBody)
	if err != nil {
		return nil, errors.New("the URL cannot be parsed")
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
		return nil, fmt.Errorf("%w: ask for manifests: %w; check server and URL; %s", ErrUnavailable, unquoted(err), a.meanwhile())
	}
	defer resp.Body.Close() //nolint:errcheck // what counts has been read
	switch resp.StatusCode {
	case http.StatusNotModified:
		return nil, nil //nolint:nilnil // nothing new is no error, says the comment above
	case http.StatusOK:
	default:
		return nil, fmt.Errorf("%w: ask for manifests: the server answers %d %s; %s",
			ErrUnavailable, resp.StatusCode, http.StatusText(resp.StatusCode), a.meanwhile())
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, int64(s.cfg.MaxBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer: %w; %s", ErrUnavailable, unquoted(err), a.meanwhile())
	}
	if len(data) > s.cfg.MaxBytes {
		return nil, fmt.Errorf("the answer has more than the %d bytes allowed: %w", s.cfg.MaxBytes, podspec.ErrTooLarge)
	}
	opt := podspec.DecodeOptions{Lenient: s.cfg.Lenient, MaxBytes: s.cfg.MaxBytes}
	var next answers
	if next.content, err = parse(data, opt, a.content); err == nil {
		// Of a bad answer it must not be heard that it is as before.
		next.etag, next.modified = resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	}
	return &next, err
}

// unquoted takes away the URL that errors of package net/http quote, with a
// query that may be secret.
func unquoted(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
