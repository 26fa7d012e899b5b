package server

import (
	"context"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// KubeAPI serves the paths of a Kubernetes API server, so that kubectl works without a
// cluster. *kubeapi.API, of package server/kubeapi, is one. It is called concurrently.
type KubeAPI interface {
	// ServeKube responds to a request below /api, /apis, /openapi and /version. It
	// authorizes the request.
	ServeKube(w http.ResponseWriter, r *KubeRequest)
}

// KubeRequest is a request to a KubeAPI.
type KubeRequest struct {
	*http.Request

	User       *authenticationv1.UserInfo // nil: the client is not authenticated, and gets status 401
	Authorizer Authorizer                 // nil: each authenticated user may do everything
	// Node serves the paths of the kubelet's API: logs and streams. It does not authorize.
	Node http.Handler
	// Stream takes a slot for a request that may last long, and removes the time limits
	// of others. It responds if there is none; else the caller calls done.
	Stream func(w http.ResponseWriter) (done func(), ok bool)
}

// maxKubeBody is the limit of an API server.
const maxKubeBody = 3 << 20

// isKubePath reports whether a path is one of a Kubernetes API server.
func isKubePath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "api", "apis", "openapi", "version":
		return true
	}
	return false
}

// serveKube hands a request to Config.KubeAPI, if that serves its path.
func (s *Server) serveKube(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo) bool {
	if s.cfg.KubeAPI == nil || !isKubePath(r.URL.Path) {
		return false
	}
	if !s.trusted(r) {
		http.Error(w, "this endpoint needs TLS with authentication and authorization", http.StatusForbidden)
		return true
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxKubeBody)
	s.cfg.KubeAPI.ServeKube(w, &KubeRequest{
		Request: r, User: user, Authorizer: keeping{s.cfg.Authorizer, r}, Node: http.HandlerFunc(s.serveNode),
		Stream: func(w http.ResponseWriter) (func(), bool) { return s.stream(w, r) },
	})
	return true
}

// keeping is an Authorizer that keeps the connection of a request whose user has a right.
type keeping struct {
	Authorizer
	r *http.Request
}

// Authorize implements Authorizer.
func (k keeping) Authorize(ctx context.Context, user *authenticationv1.UserInfo, attributes *authorizationv1.ResourceAttributes) (bool, error) {
	allowed, err := k.Authorizer.Authorize(ctx, user, attributes)
	if allowed && err == nil {
		keep(k.r.Context(), user)
	}
	return allowed, err
}

// serveNode serves the paths of the kubelet's API to a KubeAPI.
func (s *Server) serveNode(w http.ResponseWriter, r *http.Request) {
	_, pattern := s.mux.Handler(r)
	if rt := s.routes[pattern]; rt.off != "" {
		http.Error(w, rt.off, http.StatusMethodNotAllowed)
		return
	}
	s.mux.ServeHTTP(w, r)
}
