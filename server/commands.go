package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
)

// run runs a command to its end and responds with its output. Its query parameter has
// words separated by spaces.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	pod, container := s.requestedContainer(w, r)
	if pod == nil {
		return
	}
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	output, err := s.cfg.Commands.RunCommand(r.Context(), pod, container, strings.Split(r.URL.Query().Get("cmd"), " "))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	if err != nil {
		s.fail(w, r, &commandError{err, output}, http.StatusInternalServerError)
		return
	}
	// The kubelet calls the output of any command JSON.
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.write(w, r, output)
}

// commandError is the error of a command with its output, which is for the client alone: it
// can have secrets, and any size.
type commandError struct {
	error
	output []byte
}

func (e *commandError) Error() string {
	if len(e.output) == 0 {
		return e.error.Error()
	}
	return e.error.Error() + "\n" + string(e.output)
}

func (e *commandError) Unwrap() error { return e.error }

// Redacted returns the text of the error for logs.
func (e *commandError) Redacted() string { return logattr.Redact(e.error) }

// checkpoint writes a checkpoint of a container and responds with its path.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	pod, container := s.requestedContainer(w, r)
	if pod == nil {
		return
	}
	var timeout time.Duration
	if values := r.URL.Query()["timeout"]; len(values) > 0 {
		seconds, err := strconv.ParseInt(values[len(values)-1], 10, 32)
		if err != nil || seconds < 0 {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusBadRequest)
			return
		}
		timeout = time.Duration(seconds) * time.Second
	}
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	archive, err := s.cfg.Checkpointer.Checkpoint(r.Context(), pod, container, timeout)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	if err != nil {
		s.fail(w, r, fmt.Errorf("checkpointing of %s/%s/%s failed (%w)", pod.Namespace, pod.Name, container, err), http.StatusInternalServerError)
		return
	}
	b, _ := json.Marshal(map[string][]string{"items": {archive}}) // strings cannot fail
	w.Header().Set("Content-Type", "application/json")
	s.write(w, r, b)
}
