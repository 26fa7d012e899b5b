package kubeapi

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// serveSubresource responds to a request for a part of a pod or node.
func (a *API) serveSubresource(r *request, verb string) error {
	switch sub := r.path.subresource; sub {
	case "status":
		if verb != "get" {
			return errForbidden("the status of a pod is what the node has observed, and cannot be set")
		}
		return a.get(r)
	case "ephemeralcontainers", "resize":
		switch verb {
		case "get":
			return a.get(r)
		case "update":
			return a.update(r, sub)
		}
		return a.patch(r, sub)
	case proxy:
		return a.proxyNode(r)
	case "log":
		if err := r.checkLogOptions(); err != nil {
			return err
		}
	}
	o, err := a.requested(r)
	if err != nil {
		return err
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return errNoPath()
	}
	return a.stream(r, pod)
}

// stream hands a request for logs or a stream to the node, as an API server hands it to
// the kubelet.
func (a *API) stream(r *request, pod *corev1.Pod) error {
	paths := map[string]string{"log": "containerLogs", "exec": "exec", "attach": "attach", "portforward": "portForward"}
	target := "/" + paths[r.path.subresource] + "/" + pod.Namespace + "/" + pod.Name
	query := r.query
	switch r.path.subresource {
	case "exec", "attach":
		if podspec.IsTerminalPhase(pod.Status.Phase) {
			return apierrors.NewBadRequest("cannot " + r.path.subresource + " into a container in a completed pod; current phase is " + string(pod.Status.Phase))
		}
		query = streamQuery(query)
		fallthrough
	case "log":
		container, err := containerOf(pod, r.query.Get("container"))
		if err != nil {
			return err
		}
		target += "/" + container
	case "portforward":
		query = url.Values{"port": query["ports"]} // of a WebSocket; with SPDY they are in the streams
	}
	out := r.Clone(r.Context())
	out.URL = &url.URL{Path: target, RawQuery: query.Encode()}
	out.RequestURI = out.URL.RequestURI()
	w := &statusWriter{ResponseWriter: r.w}
	r.Node.ServeHTTP(w, out)
	return w.failure(fmt.Sprintf("pod %q: ", pod.Name))
}

// containerOf returns the container that is meant.
func containerOf(pod *corev1.Pod, name string) (string, error) {
	name, err := podops.Container(pod, name)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	if runtime.ContainerSpec(pod, name) == nil {
		return "", apierrors.NewBadRequest("container " + name + " is not valid for pod " + pod.Name)
	}
	return name, nil
}

// streamQuery converts the options of exec and attach to the kubelet's names.
func streamQuery(from url.Values) url.Values {
	to := url.Values{}
	if command := from["command"]; len(command) > 0 {
		to["command"] = command
	}
	// What is not mentioned is off: clients leave out what they do not want.
	for name, kubelet := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
		if isTrue(from, name) {
			to.Set(kubelet, "1")
		}
	}
	return to
}

// maxFailure bounds the text of an error of the node.
const maxFailure = 64 << 10

// statusWriter keeps the errors of the node, which are text, to send them as a Status.
type statusWriter struct {
	http.ResponseWriter
	code int // ≥ 400; 0: the node has not failed
	text bytes.Buffer
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	if code >= http.StatusBadRequest {
		w.code = code
		return
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(b []byte) (int, error) {
	if w.code == 0 {
		return w.ResponseWriter.Write(b)
	}
	w.text.Write(b[:min(len(b), maxFailure-w.text.Len())])
	return len(b), nil
}

// failure returns the error of the node, which about is put in front of, or nil.
func (w *statusWriter) failure(about string) error {
	if w.code == 0 {
		return nil
	}
	for _, header := range []string{"Content-Type", "Content-Length", "X-Content-Type-Options"} {
		w.Header().Del(header)
	}
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed: metav1.StatusReasonMethodNotAllowed, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
		http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
	}
	reason, ok := reasons[w.code]
	if !ok {
		reason = metav1.StatusReasonInternalError
	}
	text := strings.TrimSpace(w.text.String())
	if text == "" {
		text = http.StatusText(w.code)
	}
	return status(w.code, reason, "%s%s", about, text)
}
