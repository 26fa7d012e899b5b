package server

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/sublet-dev/agent/runtime"
)

// containerLogs responds with the log of a container, as it is written.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, `{"message": "Unable to decode query."}`, http.StatusBadRequest)
		return
	}
	if !validLogOptions(opts) {
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

// logOptions converts a query as Kubernetes does.
func logOptions(query url.Values) (*corev1.PodLogOptions, error) {
	all := corev1.LogStreamAll
	opts := &corev1.PodLogOptions{Stream: &all}
	var errs []error
	decode := func(name string, to func(*[]string) error) {
		if values := query[name]; len(values) > 0 {
			errs = append(errs, to(&values))
		}
	}
	boolean := func(name string, to *bool) {
		decode(name, func(v *[]string) error { return apiruntime.Convert_Slice_string_To_bool(v, to, conversion.Scope(nil)) })
	}
	number := func(name string, to **int64) {
		decode(name, func(v *[]string) error {
			*to = new(int64)
			return apiruntime.Convert_Slice_string_To_int64(v, *to, conversion.Scope(nil))
		})
	}
	if tail := query.Get("tail"); tail != "" { // of old clients; tailLines is the current name
		query["tailLines"] = []string{tail}
		if tail == "all" {
			delete(query, "tailLines")
		}
	}
	boolean("follow", &opts.Follow)
	boolean("previous", &opts.Previous)
	boolean("timestamps", &opts.Timestamps)
	number("sinceSeconds", &opts.SinceSeconds)
	number("tailLines", &opts.TailLines)
	number("limitBytes", &opts.LimitBytes)
	if since := query.Get("sinceTime"); since != "" {
		at, err := time.Parse(time.RFC3339, since)
		errs, opts.SinceTime = append(errs, err), &metav1.Time{Time: at}
	}
	if stream := query.Get("stream"); stream != "" {
		opts.Stream = &stream
	}
	return opts, errors.Join(errs...)
}

// validLogOptions applies the rules of the API.
func validLogOptions(o *corev1.PodLogOptions) bool {
	less := func(n *int64, least int64) bool { return n != nil && *n < least }
	switch *o.Stream {
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.TailLines != nil {
			return false // the last lines of one stream would take reading the complete log
		}
	case corev1.LogStreamAll:
	default:
		return false
	}
	return !less(o.TailLines, 0) && !less(o.LimitBytes, 1) && !less(o.SinceSeconds, 1) && (o.SinceSeconds == nil || o.SinceTime == nil)
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
