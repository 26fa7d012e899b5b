package server

import (
	"net"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// route is what the server knows of a path besides its handler.
type route struct {
	subresources []string // rights, of which one is needed
	verb         string   // needed; "": that of the method
	sensitive    bool     // only for clients that trusted accepts
	off          string   // why the path is disabled; "": it is enabled
}

// unmatched is the route of what no handler serves: only who may use every path
// learns which exist.
func unmatched() route { return route{subresources: []string{"proxy"}} }

// handle registers a handler for a pattern of http.ServeMux.
func (s *Server) handle(pattern string, rt route, h http.HandlerFunc) {
	if rt.subresources == nil {
		rt.subresources = subresources(path(pattern))
	}
	s.routes[pattern] = rt
	s.mux.HandleFunc(pattern, h)
}

// path returns a pattern without its method.
func path(pattern string) string {
	_, path, ok := strings.Cut(pattern, " ")
	if !ok {
		return pattern
	}
	return path
}

// register registers all paths.
func (s *Server) register() {
	s.handle("GET /healthz", route{}, s.healthz)
	for _, c := range s.checks() {
		s.handle("GET /healthz/"+c.Name, route{}, s.check(c))
	}
	for _, path := range []string{"/livez", "/readyz"} { // an API server's
		s.handle("GET "+path, route{off: off(s.cfg.KubeAPI != nil), subresources: subresources("/healthz")}, s.healthz)
	}
	s.handle("GET /pods", route{}, s.pods)
	s.handle("GET /problems", route{}, s.problems)
	s.handle("GET /runningpods/{$}", route{off: off(s.cfg.RunningPods != nil)}, s.runningPods)
	s.handle("GET /configz", route{sensitive: true, off: off(s.cfg.Configz != nil)}, s.configz)
	s.handle("GET /flagz", route{sensitive: true, off: off(s.cfg.Flagz != nil)}, s.flagz)
	s.handle("GET /statusz", route{}, s.statusz)
	summary := share(http.HandlerFunc(s.summary))
	s.handle("GET /stats/summary", route{off: off(s.cfg.Summary != nil)}, summary.ServeHTTP)
	s.handle("POST /stats/summary", route{off: off(s.cfg.Summary != nil)}, summary.ServeHTTP)
	s.handle("GET /logs", route{sensitive: true, off: off(s.cfg.LogDir != "")}, s.nodeLogs)
	s.handle("GET /logs/", route{sensitive: true, off: off(s.cfg.LogDir != "")}, s.nodeLogs)
	s.handle("GET /containerLogs/{namespace}/{pod}/{container}", route{sensitive: true, off: off(s.cfg.Logs != nil)}, s.containerLogs)
	s.handle("POST /checkpoint/{namespace}/{pod}/{container}", route{sensitive: true, off: off(s.cfg.Checkpointer != nil)}, s.checkpoint)

	// A process in a container takes the right to create, by which method ever: a
	// WebSocket begins with GET, and who may read must not execute.
	command := route{verb: "create", sensitive: true}
	run, streams := command, command
	run.off, streams.off = off(s.cfg.Commands != nil), off(s.cfg.Streams != nil)
	for _, target := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		s.handle("POST /run"+target, run, s.run)
		for _, method := range []string{"GET ", "POST "} {
			s.handle(method+"/exec"+target, streams, s.exec)
			s.handle(method+"/attach"+target, streams, s.attach)
		}
	}
	for _, target := range []string{"/{namespace}/{pod}", "/{namespace}/{pod}/{uid}"} {
		for _, method := range []string{"GET ", "POST "} {
			s.handle(method+"/portForward"+target, streams, s.portForward)
		}
	}
	s.registerUI()
	s.registerPprof()
	for path, h := range s.cfg.Handlers {
		if isMetrics(path) {
			h = share(h)
		}
		s.handle(path, route{}, h.ServeHTTP)
	}
}

// off is the message of a path that the node cannot serve.
func off(served bool) string {
	if served {
		return ""
	}
	return "this endpoint is disabled."
}

// ServeHTTP implements http.Handler, for use in another server. It authenticates and
// authorizes like the server itself. Only requests that came by TLS, with an
// Authorizer, reach the paths that need them.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if acts(r) && fromPage(w, r) {
		return
	}
	r, err := withBearerProtocol(r)
	var user *authenticationv1.UserInfo
	if err == nil {
		user = s.user(r)
	}
	if s.serveKube(w, r, user) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if user == nil && (len(s.cfg.Authenticators) > 0 || s.cfg.Authorizer != nil) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	r, pattern := s.match(r)
	rt, ok := s.routes[pattern]
	if !ok {
		rt = unmatched()
	}
	if !s.authorized(w, r, user, rt) {
		return
	}
	keep(r.Context(), user)
	switch {
	case rt.off != "":
		http.Error(w, rt.off, http.StatusMethodNotAllowed)
	case rt.sensitive && !s.trusted(r):
		http.Error(w, "this endpoint needs TLS with authentication and authorization", http.StatusForbidden)
	default:
		s.mux.ServeHTTP(w, r)
	}
}

// match returns the pattern that serves a request. A slash at the end of a path that none has is
// left out of the request: some clients of kubelets ask for /pods/.
func (s *Server) match(r *http.Request) (*http.Request, string) {
	_, pattern := s.mux.Handler(r)
	path, ok := strings.CutSuffix(r.URL.Path, "/")
	if pattern != "" || !ok || path == "" {
		return r, pattern
	}
	short, u := *r, *r.URL
	u.Path, u.RawPath = path, strings.TrimSuffix(u.RawPath, "/")
	short.URL = &u
	if _, pattern = s.mux.Handler(&short); pattern == "" {
		return r, ""
	}
	return &short, pattern
}

// trusted reports whether a client may use paths that reveal secrets or change pods.
func (s *Server) trusted(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && s.cfg.TrustSocketClients && addr.Network() == "unix" {
		return true
	}
	return r.TLS != nil && len(s.cfg.Authenticators) > 0 && s.cfg.Authorizer != nil
}

// used reports whether a path of Config.Handlers is one of the server's own.
func used(path string) bool {
	return slices.Contains([]string{"api", "apis", "openapi", "version", "livez", "readyz", "healthz", "pods", "problems", "runningpods", "configz", "flagz", "statusz", "logs", "containerLogs", "checkpoint", "run", "exec", "attach", "portForward", "ui"},
		strings.Split(strings.TrimPrefix(path, "/")+"/", "/")[0]) || path == "/stats/summary" || strings.HasPrefix(path, "/debug/pprof")
}
