package server

import (
	"fmt"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
)

// Durations of a CPU profile and of a trace.
const (
	defaultProfileDuration = 30 * time.Second
	defaultTraceDuration   = time.Second
	maxProfileDuration     = 5 * time.Minute
)

// registerPprof registers the profiles of this process, with the paths of net/http/pprof.
// That package is not used: it serves them on the default mux of the program as well, and
// the command line, which may have secrets.
func (s *Server) registerPprof() {
	rt := route{sensitive: true, off: off(s.cfg.Profiling)}
	s.handle("GET /debug/pprof/{$}", rt, s.profiles)
	s.handle("GET /debug/pprof/{name}", rt, s.profile)
}

// profiles lists the profiles.
func (s *Server) profiles(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	for _, p := range pprof.Profiles() {
		fmt.Fprintf(&text, "%s %d\n", p.Name(), p.Count())
	}
	text.WriteString("profile\ntrace\n")
	s.text(w, r, http.StatusOK, text.String())
}

// profile responds with one profile: that of the CPU and a trace take the time that
// ?seconds says.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	switch name {
	case "profile":
		s.record(w, r, defaultProfileDuration, func() error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile)
		return
	case "trace":
		s.record(w, r, defaultTraceDuration, func() error { return trace.Start(w) }, trace.Stop)
		return
	}
	p := pprof.Lookup(name)
	if p == nil {
		http.Error(w, "unknown profile", http.StatusNotFound)
		return
	}
	debug, _ := strconv.Atoi(r.FormValue("debug")) // 0: the binary format
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/octet-stream")
	if debug > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	s.logWriteError(r, p.WriteTo(w, debug))
}

// record records for a time, or until the client disconnects. It slows this process down,
// and there is one at a time: not for web pages.
func (s *Server) record(w http.ResponseWriter, r *http.Request, duration time.Duration, start func() error, stop func()) {
	if fromPage(w, r) {
		return
	}
	if text := r.FormValue("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		duration = time.Duration(seconds * float64(time.Second))
		if err != nil || duration <= 0 || duration > maxProfileDuration {
			http.Error(w, "seconds must be a number above 0 and at most 300", http.StatusBadRequest)
			return
		}
	}
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := start(); err != nil { // one at a time
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_ = sleep.For(r.Context(), duration)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	stop()
}
