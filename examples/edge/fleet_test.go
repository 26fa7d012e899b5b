package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// fleet is the server of a node. It is a handler, and a transport for a node in a bubble.
type fleet struct {
	mu        sync.Mutex
	fail      http.HandlerFunc // responds to all requests; nil: the server works
	failPUT   http.HandlerFunc // responds to statuses
	token     string
	manifests string
	etags     []string              // If-None-Match of each request for pods
	statuses  map[string]corev1.Pod // by UID
	deleted   int
	failed    int // requests to which fail or failPUT responded
}

func newFleet(manifests string) *fleet {
	return &fleet{token: "secret-1", manifests: manifests, statuses: map[string]corev1.Pod{}}
}

// set changes the server.
func (s *fleet) set(f func(*fleet)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// running returns the names of the pods that are reported as running.
func (s *fleet) running() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range s.statuses {
		if pod.Status.Phase == corev1.PodRunning {
			names = append(names, pod.Name)
		}
	}
	return names
}

// reported returns the id and the restarts of each running container.
func (s *fleet) reported() (containers []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range s.statuses {
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				containers = append(containers, fmt.Sprintf("%s %s %d", pod.Name, c.ContainerID, c.RestartCount))
			}
		}
	}
	return containers
}

func (s *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fail, isPut := s.fail, r.Method == http.MethodPut
	if fail == nil && isPut {
		fail = s.failPUT
	}
	if fail != nil {
		s.failed++
	}
	s.mu.Unlock()
	if fail != nil {
		fail(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	uid, isStatus := strings.CutPrefix(r.URL.Path, "/nodes/edge-1/statuses/")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+s.token:
		w.WriteHeader(http.StatusUnauthorized)
	case isPut && isStatus:
		var pod corev1.Pod
		if err := json.NewDecoder(r.Body).Decode(&pod); err != nil || string(pod.UID) != uid {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.statuses[uid] = pod
	case r.Method == http.MethodDelete && isStatus:
		s.deleted++
		if _, ok := s.statuses[uid]; !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		delete(s.statuses, uid)
	case r.Method == http.MethodGet && r.URL.Path == "/nodes/edge-1/pods":
		s.etags = append(s.etags, r.Header.Get("If-None-Match"))
		etag := fmt.Sprintf("%q", fmt.Sprint(len(s.manifests)))
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", etag)
		_, _ = w.Write([]byte(s.manifests)) // the node may have disconnected
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// RoundTrip implements http.RoundTripper without a network.
func (s *fleet) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("connection reset by peer")
		}
	}()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp = w.Result()
	if lost := resp.Header.Get("Test-Lost-After"); lost != "" {
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(lost), iotest.ErrReader(io.ErrUnexpectedEOF)))
	}
	return resp, nil
}

// away responds to nothing, as a server that cannot be reached.
func away(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// hang does not respond.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// lose responds with a text and loses the connection.
func lose(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Test-Lost-After", text) }
}

// code responds with a status code.
func code(c int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c) }
}

// text responds with a text.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

// podManifest returns the manifest of a pod that runs until it is stopped.
func podManifest(name string) string {
	return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: main, image: example/app:1}]\n"
}

// tokenFile returns a file with a token.
func tokenFile(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	return file
}

// start runs f until the returned function is called, which waits for the end.
func start(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return func() {
		t.Helper()
		cancel()
		require.NoError(t, <-done)
	}
}
