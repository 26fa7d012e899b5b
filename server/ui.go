package server

import "net/http"

// uiEvents is the path of the page for people whose response lasts. See package ui.
const uiEvents = "events"

// registerUI registers the page for people. It takes the right to read pods.
func (s *Server) registerUI() {
	rt := route{off: off(s.cfg.UI != nil)}
	s.handle("GET /ui", rt, func(w http.ResponseWriter, _ *http.Request) {
		// A relative location is right behind the proxy of an API server too.
		w.Header().Set("Location", "ui/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	s.handle("GET /ui/{path...}", rt, s.ui)
}

// ui serves the page. Its events take a slot, like other streams.
func (s *Server) ui(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("path") == uiEvents {
		done, ok := s.stream(w, r)
		if !ok {
			return
		}
		defer done()
	}
	http.StripPrefix("/ui", s.cfg.UI).ServeHTTP(w, r)
}
