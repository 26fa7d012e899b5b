package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Fake is an API server in the process, reached through pipes, so that it works in a
// bubble of testing/synctest. It has objects of any core resource as they are: it
// validates, defaults and authorizes nothing. It knows what a client depends on: resource
// versions, watches with bookmarks and initial events, UID preconditions, graceful
// deletion, finalizers, and strategic merge patches.
type Fake struct {
	t *testing.T

	// Intercept, if set before the first request, is called for each request. If it returns
	// true, it has written the response.
	Intercept func(w http.ResponseWriter, r *http.Request) bool
	// WithoutWatchList is a server that sends no initial events.
	WithoutWatchList bool

	mu        sync.Mutex // guards the fields below
	version   int
	compacted int // events up to this version are gone
	objects   map[string]*unstructured.Unstructured
	log       []loggedEvent
	changed   chan struct{} // closed and replaced with each event
	cut       chan struct{} // closed and replaced by CutWatches
	requests  []string
}

type loggedEvent struct {
	version  int
	resource string
	kind     string // of event
	object   *unstructured.Unstructured
}

// NewFake returns a Fake. It is stopped at the end of the test.
func NewFake(t *testing.T) *Fake {
	return &Fake{
		t: t, version: 100, objects: map[string]*unstructured.Unstructured{},
		changed: make(chan struct{}), cut: make(chan struct{}),
	}
}

// Client returns a client of the Fake. Its connections end with the test.
func (f *Fake) Client() kubernetes.Interface {
	f.t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Hour}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	transport := &http.Transport{DialContext: l.dial}
	f.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	cfg := &rest.Config{Host: "http://fake", QPS: 10_000, Burst: 10_000}
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport})
	require.NoError(f.t, err)
	return client
}

// pipeListener accepts the connections of dial.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "pipe"} }

// Put creates or replaces an object of a resource such as "pods", with a UID if it has none,
// and returns its version.
func (f *Fake) Put(resource string, object metav1.Object) string {
	f.t.Helper()
	u := f.encode(object)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(resource, u)
	return u.GetResourceVersion()
}

// Pod returns a pod, or nil.
func (f *Fake) Pod(namespace, name string) *corev1.Pod {
	f.t.Helper()
	pod := &corev1.Pod{}
	if !f.get(key("pods", namespace, name), pod) {
		return nil
	}
	return pod
}

// Node returns a node, or nil.
func (f *Fake) Node(name string) *corev1.Node {
	f.t.Helper()
	node := &corev1.Node{}
	if !f.get(key("nodes", "", name), node) {
		return nil
	}
	return node
}

func (f *Fake) get(k string, into any) bool {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.objects[k]
	if u != nil {
		f.decode(u, into)
	}
	return u != nil
}

// Events returns all events.
func (f *Fake) Events() (events []corev1.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.list("events", "") {
		var e corev1.Event
		f.decode(u, &e)
		events = append(events, e)
	}
	return events
}

func (f *Fake) encode(object any) *unstructured.Unstructured {
	f.t.Helper()
	raw, err := json.Marshal(object)
	require.NoError(f.t, err)
	u := &unstructured.Unstructured{}
	require.NoError(f.t, json.Unmarshal(raw, &u.Object))
	return u
}

func (f *Fake) decode(u *unstructured.Unstructured, into any) {
	f.t.Helper()
	raw, err := json.Marshal(u.Object)
	require.NoError(f.t, err)
	require.NoError(f.t, json.Unmarshal(raw, into))
}

// Remove deletes an object at once.
func (f *Fake) Remove(resource, namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(resource, key(resource, namespace, name))
}

// Requests returns method and path of all requests so far, and forgets them.
func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	requests := f.requests
	f.requests = nil
	return requests
}

// CutWatches ends all watches, as a server does that restarts. A compacted one answers a
// watch from before with 410 Gone.
func (f *Fake) CutWatches(compact bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if compact {
		f.compacted = f.version
	}
	close(f.cut)
	f.cut = make(chan struct{})
}

// Send sends a watch event of any content to all watches of a resource.
func (f *Fake) Send(resource, kind string, object any) {
	f.t.Helper()
	u := f.encode(object)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emit(resource, kind, u)
}

func key(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

// put stores an object. f.mu is held.
func (f *Fake) put(resource string, u *unstructured.Unstructured) {
	kind := "MODIFIED"
	k := key(resource, u.GetNamespace(), u.GetName())
	if f.objects[k] == nil {
		kind = "ADDED"
	}
	f.version++
	u.SetResourceVersion(strconv.Itoa(f.version))
	if u.GetUID() == "" {
		u.SetUID(types.UID("uid-" + strconv.Itoa(f.version)))
	}
	if kind := kinds[resource]; kind != "" {
		u.SetAPIVersion("v1")
		u.SetKind(kind)
	}
	f.objects[k] = u
	f.emit(resource, kind, u)
}

// remove deletes an object. f.mu is held.
func (f *Fake) remove(resource, k string) {
	u := f.objects[k]
	if u == nil {
		return
	}
	delete(f.objects, k)
	u = u.DeepCopy()
	f.version++
	u.SetResourceVersion(strconv.Itoa(f.version))
	f.emit(resource, "DELETED", u)
}

// emit logs an event. f.mu is held.
func (f *Fake) emit(resource, kind string, u *unstructured.Unstructured) {
	f.log = append(f.log, loggedEvent{f.version, resource, kind, u})
	close(f.changed)
	f.changed = make(chan struct{})
}

// kinds are those of the objects of resources that have to tell.
var kinds = map[string]string{"pods": "Pod", "events": "Event", "nodes": "Node"}

// list returns the objects of a resource in the order of their names. f.mu is held.
func (f *Fake) list(resource, namespace string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, k := range slices.Sorted(maps.Keys(f.objects)) {
		if strings.HasPrefix(k, resource+"/"+namespace) {
			out = append(out, f.objects[k])
		}
	}
	return out
}

// ServeHTTP implements http.Handler.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.Path)
	f.mu.Unlock()
	if f.Intercept != nil && f.Intercept(w, r) {
		return
	}
	path, hasGroup := strings.CutPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/apis/")
	if hasGroup {
		_, path, _ = strings.Cut(path, "/") // group
		_, path, _ = strings.Cut(path, "/") // version
	}
	parts := strings.Split(path, "/")
	namespace := ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	switch {
	case r.Method == http.MethodGet && len(parts) == 1 && r.URL.Query().Get("watch") != "":
		f.watch(w, r, resource)
	case r.Method == http.MethodGet && len(parts) == 1:
		f.writeList(w, resource, namespace)
	case r.Method == http.MethodPost && len(parts) == 1:
		f.create(w, r, resource, namespace)
	case len(parts) > 1:
		f.serveObject(w, r, resource, key(resource, namespace, parts[1]))
	default:
		WriteError(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

func (f *Fake) writeList(w http.ResponseWriter, resource, namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []any{}
	for _, u := range f.list(resource, namespace) {
		items = append(items, u.Object)
	}
	kind := kinds[resource] + "List" // a client takes a List for none of its own lists, and has an empty one then
	writeJSON(w, http.StatusOK, map[string]any{
		"kind": kind, "apiVersion": "v1", "items": items, "metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)},
	})
}

func (f *Fake) create(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	u := &unstructured.Unstructured{}
	body, err := readJSON(r)
	if err == nil {
		err = json.Unmarshal(body, &u.Object)
	}
	if err != nil {
		WriteError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u.SetNamespace(namespace)
	u.SetUID("")
	if f.objects[key(resource, namespace, u.GetName())] != nil {
		WriteError(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	f.put(resource, u)
	writeJSON(w, http.StatusCreated, u.Object)
}

func (f *Fake) serveObject(w http.ResponseWriter, r *http.Request, resource, k string) {
	body, err := readJSON(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.objects[k]
	switch {
	case err != nil:
		WriteError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	case u == nil:
		WriteError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		writeJSON(w, http.StatusOK, u.Object)
	case r.Method == http.MethodPatch:
		f.patch(w, resource, u, body)
	case r.Method == http.MethodPut:
		f.update(w, resource, u, body)
	case r.Method == http.MethodDelete:
		f.delete(w, resource, k, body)
	default:
		WriteError(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

// update replaces an object by a newer version of it. f.mu is held.
func (f *Fake) update(w http.ResponseWriter, resource string, u *unstructured.Unstructured, body []byte) {
	updated := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &updated.Object); err != nil {
		WriteError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if v := updated.GetResourceVersion(); v != "" && v != u.GetResourceVersion() {
		WriteError(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	f.put(resource, updated)
	writeJSON(w, http.StatusOK, updated.Object)
}

// delete deletes an object, a pod gracefully. f.mu is held.
func (f *Fake) delete(w http.ResponseWriter, resource, k string, body []byte) {
	var o metav1.DeleteOptions
	u := f.objects[k]
	if err := json.Unmarshal(body, &o); err != nil && len(body) > 0 {
		WriteError(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if o.Preconditions != nil && o.Preconditions.UID != nil && *o.Preconditions.UID != u.GetUID() {
		WriteError(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	if grace := o.GracePeriodSeconds; grace != nil && *grace == 0 && len(u.GetFinalizers()) == 0 {
		f.remove(resource, k)
		writeJSON(w, http.StatusOK, u.Object)
		return
	}
	u = u.DeepCopy()
	grace := int64(30)
	if o.GracePeriodSeconds != nil {
		grace = *o.GracePeriodSeconds
	}
	at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	u.SetDeletionTimestamp(&at)
	u.SetDeletionGracePeriodSeconds(&grace)
	f.put(resource, u)
	writeJSON(w, http.StatusOK, u.Object)
}

// readJSON returns the body of a request, which may be protobuf, as JSON.
func readJSON(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return body, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(object)
}

// WriteError writes an error as an API server does.
func WriteError(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: fmt.Sprintf("rejected: %s", reason),
	})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
