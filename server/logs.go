package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logoptions"
	"github.com/sublet-dev/agent/runtime"
)

// containerLogs responds with the log of a container, as it is written.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := logoptions.Parse(r.URL.Query())
	if err != nil {
		http.Error(w, `{"message": "Unable to decode query."}`, http.StatusBadRequest)
		return
	}
	if len(logoptions.Validate(opts)) > 0 {
		http.Error(w, `{"message": "Invalid request."}`, http.StatusUnprocessableEntity)
		return
	}
	pod, container := s.requestedContainer(w, r)
	if pod == nil {
		return
	}
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	opts.Container = container
	out := s.newFlushWriter(w)
	stdout, stderr := io.Writer(out), io.Writer(out)
	switch *opts.Stream {
	case corev1.LogStreamStdout:
		stderr = nil
	case corev1.LogStreamStderr:
		stdout = nil
	}
	w.Header().Set("Content-Type", "text/plain")
	err = s.cfg.Logs.ReadLog(r.Context(), pod, opts, stdout, stderr)
	switch {
	case err == nil, r.Context().Err() != nil:
	case !out.written && errors.Is(err, runtime.ErrNotFound):
		// As the kubelet: the API server passes on the reason of 400, not that of 404.
		http.Error(w, err.Error(), http.StatusBadRequest)
	case !out.written:
		s.fail(w, r, err, http.StatusBadRequest)
	default:
		// The status is sent: the error is the end of the text, as the kubelet's.
		_, _ = io.WriteString(out, err.Error())
	}
}

// stream takes a slot for a request that may last long, and removes the time limits of
// the others. It responds if there is none.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) (done func(), ok bool) {
	namespace := r.PathValue("namespace")
	if !s.streams.take(namespace) {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many streams", http.StatusTooManyRequests)
		return nil, false
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // not supported: nothing limits it
	_ = control.SetWriteDeadline(time.Time{})
	return func() {
		s.streams.release(namespace)
		_ = control.SetWriteDeadline(time.Now().Add(responseTimeout)) // that of the last write may have passed: the end is still to be sent
	}, true
}

// flushWriter sends what is written to it at once. A client that accepts nothing for
// the idle timeout makes a write fail.
type flushWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
	written bool
}

func (s *Server) newFlushWriter(w http.ResponseWriter) *flushWriter {
	return &flushWriter{w: w, control: http.NewResponseController(w), idle: s.cfg.StreamIdleTimeout}
}

func (f *flushWriter) Write(b []byte) (int, error) {
	_ = f.control.SetWriteDeadline(time.Now().Add(f.idle))
	f.written = true
	n, err := f.w.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
