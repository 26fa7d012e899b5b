package podsource_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
)

// fakeServer is a server inside a bubble: an http.Handler behind a RoundTripper.
type fakeServer struct {
	handler atomic.Value // func(http.ResponseWriter, *http.Request)
	asked   atomic.Int32
}

func (s *fakeServer) serves(h func(w http.ResponseWriter, r *http.Request)) { s.handler.Store(h) }

func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked.Add(1)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() { defer close(done); s.handler.Load().(func(http.ResponseWriter, *http.Request))(w, r) }()
	select {
	case <-done:
		return w.Result(), nil
	case <-r.Context().Done():
		<-done
		return nil, r.Context().Err()
	}
}

func (s *fakeServer) says(status int, body string) {
	s.serves(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

func ask(t *testing.T, cfg podsource.HTTPConfig) podsource.Source {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = "http://user:hunter2@manifests.example/pods?token=s3cret"
	}
	source, err := podsource.HTTP(cfg)
	require.NoError(t, err)
	return source
}

// SR-6: asked each interval; what is known stays while the server fails.
func TestHTTP_FailsAndRecovers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		s.says(500, "")
		r := start(t, ask(t, podsource.HTTPConfig{Transport: s}))
		step := func() []string { time.Sleep(20 * time.Second); return r.delivered() }
		assert.Empty(t, r.delivered())
		assert.False(t, r.mux.HasSynced("a"), "it has told nothing yet")
		assert.Contains(t, r.errors(), "http://manifests.example/pods: source is unavailable: fetch manifests: server responded 500")

		s.says(200, manifest("x", "1")+"---\n"+manifest("y", "1"))
		assert.Equal(t, []string{"ADD a x-n1=1 y-n1=1"}, step())
		assert.True(t, r.mux.HasSynced("a"))
		assert.Empty(t, r.errors())
		assert.EqualValues(t, 2, s.asked.Load())

		for name, fails := range map[string]func(){
			"status 404":   func() { s.says(404, "nothing here") },
			"status 204":   func() { s.says(204, "") },
			"an empty 200": func() { s.says(200, "") },
			"rubbish":      func() { s.says(200, "<html>log in</html>") },
			"half of it":   func() { s.says(200, manifest("x", "1")+"---\napiVersion: v1\nkind: Po") },
			"a page of NUL": func() {
				s.says(200, strings.Repeat("\x00", 100))
			},
			"no answer": func() {
				s.serves(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			},
			"too much": func() { s.says(200, "#"+strings.Repeat("x", podsource.DefaultMaxBytes)) },
		} {
			fails()
			assert.Empty(t, step(), name)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			faults := r.errors()
			assert.NotEmpty(t, faults, name)
			assert.NotContains(t, faults, "hunter2")
			assert.NotContains(t, faults, "s3cret")
			assert.Equal(t, []string{"x-n1=1", "y-n1=1"}, r.desired(), name)
			time.Sleep(10 * time.Second)
		}

		s.says(200, manifest("x", "2"))
		assert.Equal(t, []string{"REMOVE a x-n1=1 y-n1=1", "ADD a x-n1=2"}, step())
		assert.Empty(t, r.errors())
		s.says(200, `{"apiVersion":"v1","kind":"PodList","items":[]}`)
		assert.Equal(t, []string{"REMOVE a x-n1=2"}, step(), "a list of none")
	})
}

// roundTripFunc is an http.RoundTripper.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// SR-6: an outage is one error from its first to its last attempt, although each has another local port.
func TestHTTP_OneErrorPerOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var attempts atomic.Int32 // of both sources, which run at once
		local := func() net.Addr {
			return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 41000 + int(attempts.Add(1))}
		}
		server := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 443}
		for name, fail := range map[string]func() error{
			"reset": func() error {
				return &net.OpError{Op: "read", Net: "tcp", Source: local(), Addr: server, Err: syscall.ECONNRESET}
			},
			"DNS": func() error {
				return &net.DNSError{Err: fmt.Sprintf("read udp %s->%s: connection refused", local(), server), Name: "cfg", Server: "10.0.0.1:53"}
			},
		} {
			source := ask(t, podsource.HTTPConfig{Transport: roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, fail() })})
			r := start(t, source)
			synctest.Wait()
			first := r.mux.Errors()
			require.Len(t, first, 1, name)
			assert.Contains(t, first[0].Error(), "10.0.0.1:443: connection re", name)
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Equal(t, first[0].Since, r.mux.Errors()[0].Since, name)
			assert.Equal(t, first[0].Error(), r.mux.Errors()[0].Error(), name)
		}
	})
}

// SR-6: an invalid manifest holds up no other one, however long it stays invalid.
func TestHTTP_AppliesChangesBesideInvalidManifest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		const invalid = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: broken}\nspec: {contaners: []}\n"
		s.says(200, manifest("x", "1")+invalid)
		r := start(t, ask(t, podsource.HTTPConfig{Transport: s}))
		step := func() []string { time.Sleep(20 * time.Second); return r.delivered() }
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		fault := r.errors()
		assert.Contains(t, fault, "contaners")
		assert.Empty(t, step())
		s.says(200, manifest("x", "2")+invalid)
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, step())
		assert.Equal(t, fault, r.errors())
		s.says(200, manifest("x", "2")+invalid+"---\n"+manifest("z", "1"))
		assert.Equal(t, []string{"ADD a z-n1=1"}, step())
		assert.Equal(t, fault, r.errors())
		assert.Empty(t, step())
	})
}

// SR-6: headers as given; only what changed is sent again.
func TestHTTP_ConditionalRequests(t *testing.T) {
	for name, field := range map[string][2]string{
		"ETag":          {"ETag", "If-None-Match"},
		"Last-Modified": {"Last-Modified", "If-Modified-Since"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := &fakeServer{}
				var sent atomic.Int32
				var version atomic.Value
				version.Store("v1")
				good := func(w http.ResponseWriter, r *http.Request) {
					assert.Equal(t, "me", r.Header.Get("X-Node"))
					assert.Equal(t, "s3cret", r.URL.Query().Get("token"))
					user, password, _ := r.BasicAuth()
					assert.Equal(t, "user hunter2", user+" "+password)
					if r.Header.Get(field[1]) == version.Load() {
						w.WriteHeader(http.StatusNotModified)
						return
					}
					sent.Add(1)
					v := version.Load().(string)
					w.Header().Set(field[0], v)
					if v[0] != 'v' {
						fmt.Fprint(w, v)
						return
					}
					fmt.Fprint(w, manifest("x", v))
				}
				s.serves(good)
				r := start(t, ask(t, podsource.HTTPConfig{Transport: s, Header: http.Header{"X-Node": {"me"}}, Period: time.Minute}))
				r.delivered()
				time.Sleep(10 * time.Minute)
				assert.Empty(t, r.delivered())
				assert.EqualValues(t, 1, sent.Load())
				version.Store("v2")
				time.Sleep(time.Minute)
				assert.Equal(t, []string{"REMOVE a x-n1=v1", "ADD a x-n1=v2"}, r.delivered())

				s.says(503, "")
				time.Sleep(time.Minute)
				assert.NotEmpty(t, r.errors())
				s.serves(good)
				time.Sleep(time.Minute)
				assert.Empty(t, r.errors(), "as before, says the server")
				assert.Empty(t, r.delivered())
				assert.EqualValues(t, 2, sent.Load())

				version.Store("kind: [") // an answer that cannot be read, with a tag
				time.Sleep(time.Minute)
				assert.Contains(t, r.errors(), "document 1")
				time.Sleep(time.Minute)
				assert.Contains(t, r.errors(), "document 1", "it is as before, but not well")
				assert.Empty(t, r.delivered())
				assert.Equal(t, []string{"x-n1=v2"}, r.desired())
			})
		})
	}
}

// SR-6: where a redirect may lead.
func TestHTTP_Redirects(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		others   bool
		err      string
	}{
		{"http://a.example/x", "/y", false, ""},
		{"http://a.example/x", "https://a.example/y", false, ""},
		{"http://a.example/x", "http://b.example/y", false, "redirected to another host, b.example"},
		{"http://a.example/x", "http://a.example:81/y", false, "redirected to another host"},
		{"http://a.example/x", "http://b.example/y", true, ""},
		{"https://a.example/x?token=hunter2", "https://b.example/y", true, ""},
		{"https://a.example/x", "http://a.example/y", true, "redirected from https to http"},
		{"http://a.example/x", "/x", false, "more than 10 times"},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s, lower := &fakeServer{}, "x-lower" // not canonical
				s.serves(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.String() == tc.from {
						http.Redirect(w, r, tc.to, http.StatusFound)
						return
					}
					other := r.URL.Host == "b.example"
					assert.Equal(t, other, r.Header.Get("X-Token") == "", "%s", r.URL)
					assert.Equal(t, other, r.Header[lower] == nil, "%s", r.URL)
					assert.False(t, other && strings.Contains(fmt.Sprint(r.Header), "hunter2"), "the query may be secret")
					fmt.Fprint(w, manifest("x", "1"))
				})
				r := start(t, ask(t, podsource.HTTPConfig{
					URL: tc.from, Transport: s, AllowOtherHosts: tc.others, Header: http.Header{"X-Token": {"t"}, lower: {"t"}},
				}))
				if changes := r.delivered(); tc.err == "" {
					assert.Equal(t, []string{"ADD a x-n1=1"}, changes)
				} else {
					assert.Empty(t, changes)
					assert.Contains(t, r.errors(), tc.err)
				}
			})
		})
	}
}

func TestHTTP_RejectsInvalidConfig(t *testing.T) {
	for in, want := range map[string]string{
		"":                           `scheme ""`,
		"ftp://host/":                `scheme "ftp"`,
		"http:///path":               "host required",
		"http://u:hunter2@[::1/\x7f": "invalid URL",
	} {
		_, err := podsource.HTTP(podsource.HTTPConfig{URL: in})
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "hunter2")
	}
	_, err := podsource.HTTP(podsource.HTTPConfig{
		URL: "http://h/", Period: -1, Timeout: -1, MaxBytes: -1, TLS: &tls.Config{}, Transport: &fakeServer{},
	})
	for _, want := range []string{"Period", "Timeout", "MaxBytes", "TLS and Transport are mutually exclusive"} {
		assert.ErrorContains(t, err, want)
	}
}

// watchOnce returns the first set of a source that is complete, or the first
// with a fault.
func watchOnce(t *testing.T, source podsource.Source) podsource.Set {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sets := make(chan podsource.Set, 1)
	done := make(chan error, 1)
	go func() { done <- source.Watch(ctx, func(s podsource.Set) { sets <- s; cancel() }) }()
	require.NoError(t, <-done)
	return <-sets
}

// SR-6: over real TLS, with the given roots and no others.
func TestHTTP_TLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, manifest("x", "1"))
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	set := watchOnce(t, ask(t, podsource.HTTPConfig{URL: srv.URL, TLS: &tls.Config{RootCAs: roots}}))
	assert.Len(t, set.Pods, 1)
	assert.Empty(t, set.Errors)
	set = watchOnce(t, ask(t, podsource.HTTPConfig{URL: srv.URL}))
	assert.Empty(t, set.Pods)
	assert.True(t, set.Incomplete)
	require.Len(t, set.Errors, 1)
	assert.ErrorContains(t, set.Errors[0], "certificate")
}

// An answer packed small does not unpack into all of the memory, and one that
// is cut off is not taken for the whole.
func TestHTTP_ResponseSize(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytes.Repeat([]byte("#"), 3*podsource.DefaultMaxBytes))
	require.NoError(t, z.Close())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		case "/cut":
			w.Header().Set("Content-Length", "100000")
			fmt.Fprint(w, manifest("x", "1"))
		}
	}))
	defer srv.Close()
	set := watchOnce(t, ask(t, podsource.HTTPConfig{URL: srv.URL + "/bomb"}))
	assert.ErrorContains(t, set.Errors[0], "response exceeds 10485760 bytes")
	set = watchOnce(t, ask(t, podsource.HTTPConfig{URL: srv.URL + "/cut"}))
	assert.ErrorContains(t, set.Errors[0], "unexpected EOF")
	assert.Empty(t, set.Pods)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	set = watchOnce(t, ask(t, podsource.HTTPConfig{URL: "http://" + l.Addr().String()}))
	assert.ErrorContains(t, set.Errors[0], "connection refused")
}
