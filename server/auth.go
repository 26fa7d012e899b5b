package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// Authenticator identifies the user of a request. It is called concurrently.
type Authenticator interface {
	// Authenticate returns nil and no error if the request has no credentials of the
	// kind that it checks, and an error if they are invalid or cannot be checked.
	Authenticate(r *http.Request) (*authenticationv1.UserInfo, error)
}

// AuthenticatorFunc is a function as an Authenticator.
type AuthenticatorFunc func(*http.Request) (*authenticationv1.UserInfo, error)

// Authenticate implements Authenticator.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	return f(r)
}

// Authorizer decides what a user may do. It is called concurrently.
type Authorizer interface {
	// Authorize reports whether the user has the right that attributes describe: a verb
	// on a subresource of this node, as a ClusterRole grants it. An error denies.
	Authorize(ctx context.Context, user *authenticationv1.UserInfo, attributes *authorizationv1.ResourceAttributes) (bool, error)
}

// AuthorizerFunc is a function as an Authorizer.
type AuthorizerFunc func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error)

// Authorize implements Authorizer.
func (f AuthorizerFunc) Authorize(ctx context.Context, user *authenticationv1.UserInfo, attributes *authorizationv1.ResourceAttributes) (bool, error) {
	return f(ctx, user, attributes)
}

// The users and groups that Kubernetes defines.
const (
	anonymousUser        = "system:anonymous"
	unauthenticatedGroup = "system:unauthenticated"
	authenticatedGroup   = "system:authenticated"
)

// user identifies the user of a request. nil: the request has no valid credentials.
func (s *Server) user(r *http.Request) *authenticationv1.UserInfo {
	var errs []error
	for _, a := range s.cfg.Authenticators {
		user, err := a.Authenticate(r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if user == nil {
			continue
		}
		known := *user
		if !slices.Contains(known.Groups, authenticatedGroup) && known.Username != anonymousUser {
			known.Groups = append(slices.Clone(known.Groups), authenticatedGroup)
		}
		return &known
	}
	if err := errors.Join(errs...); err != nil {
		s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "authentication failed", slog.String("client", r.RemoteAddr), logattr.Err(err))
		return nil // invalid credentials do not make a client anonymous
	}
	if !s.cfg.Anonymous {
		return nil
	}
	return &authenticationv1.UserInfo{Username: anonymousUser, Groups: []string{unauthenticatedGroup}}
}

// authorized reports whether the user may use a route, and responds if not.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, rt route) bool {
	if s.cfg.Authorizer == nil {
		return true
	}
	verb := rt.verb
	if verb == "" {
		verb = verbs(r.Method)
	}
	for _, subresource := range rt.subresources {
		allowed, err := s.cfg.Authorizer.Authorize(r.Context(), user, &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: s.cfg.NodeName,
		})
		if err != nil {
			s.undecided.Log(r.Context(), s.cfg.Logger, slog.LevelWarn, "authorization failed", slog.String("user", user.Username), slog.String("verb", verb),
				slog.String("subresource", subresource), logattr.Err(err))
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", user.Username, verb, subresource), http.StatusInternalServerError)
			return false
		}
		if allowed {
			return true
		}
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Username, verb, rt.subresources), http.StatusForbidden)
	return false
}

// verbs returns the verb of the Kubernetes API for a method, and one that no role
// grants for others.
func verbs(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "unknown"
}

// subresources returns the subresources of a node of which a right to one is enough to
// use a path, as the kubelet assigns them (KubeletFineGrainedAuthz).
func subresources(path string) []string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "pods", "runningpods", "ui":
		return []string{"pods", "proxy"}
	case "healthz":
		return []string{"healthz", "proxy"}
	case "configz":
		return []string{"configz", "proxy"}
	case "stats", "metrics", "checkpoint", "statusz":
		return []string{first}
	case "flagz":
		return []string{"configz"}
	case "logs":
		return []string{"log"}
	}
	return []string{"proxy"}
}
