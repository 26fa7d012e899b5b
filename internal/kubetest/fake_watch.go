package kubetest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// patch applies a strategic merge patch. f.mu is held.
func (f *Fake) patch(w http.ResponseWriter, resource string, u *unstructured.Unstructured, body []byte) {
	var meta struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(body, &meta); err != nil {
		WriteError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if uid := meta.Metadata.UID; uid != "" && uid != u.GetUID() {
		WriteError(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	var kind any = corev1.Pod{}
	switch resource {
	case "events":
		kind = corev1.Event{}
	case "nodes":
		kind = corev1.Node{}
	}
	before, err := json.Marshal(u.Object)
	if err == nil {
		before, err = strategicpatch.StrategicMergePatch(before, body, kind)
	}
	patched := &unstructured.Unstructured{}
	if err == nil {
		err = json.Unmarshal(before, &patched.Object)
	}
	if err != nil {
		WriteError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	f.put(resource, patched)
	writeJSON(w, http.StatusOK, patched.Object)
}

// watch streams the events of a resource until the client goes or CutWatches.
func (f *Fake) watch(w http.ResponseWriter, r *http.Request, resource string) {
	query := r.URL.Query()
	initial := query.Get("sendInitialEvents") == "true"
	if initial && f.WithoutWatchList {
		WriteError(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	f.mu.Lock()
	cut := f.cut
	if from > 0 && from < f.compacted && !initial {
		f.mu.Unlock()
		WriteError(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := watchStream{w: w}
	if initial {
		for _, u := range f.list(resource, "") {
			out.send("ADDED", u)
		}
		from = f.version
		out.bookmark(map[string]string{"pods": "Pod", "nodes": "Node"}[resource], from)
	}
	next := len(f.log)
	for next > 0 && f.log[next-1].version > from {
		next--
	}
	f.mu.Unlock()
	out.flush()
	for {
		f.mu.Lock()
		events, changed := f.log[next:], f.changed
		next = len(f.log)
		f.mu.Unlock()
		for _, e := range events {
			if e.resource == resource {
				out.send(e.kind, e.object)
			}
		}
		out.flush()
		select {
		case <-r.Context().Done():
			return
		case <-cut:
			return
		case <-changed:
		}
	}
}

// watchStream writes watch events.
type watchStream struct{ w http.ResponseWriter }

func (s watchStream) send(kind string, object any) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		object = u.Object
	}
	_ = json.NewEncoder(s.w).Encode(map[string]any{"type": kind, "object": object}) // the client may be gone
}

func (s watchStream) bookmark(kind string, version int) {
	s.send("BOOKMARK", map[string]any{"kind": kind, "apiVersion": "v1", "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
}

func (s watchStream) flush() {
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

// Count returns how many of the requests begin with prefix.
func Count(requests []string, prefix string) (n int) {
	for _, r := range requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}
