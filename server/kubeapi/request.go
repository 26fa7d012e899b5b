package kubeapi

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sublet-dev/agent/server"
)

// path is a path below /api/v1 or /apis/GROUP/VERSION.
type path struct {
	group, version, namespace, resource, name, subresource string
	isOldWatch                                             bool // /api/v1/watch/…

	proxied string // of nodes/proxy: the path of the kubelet's API
}

// parsePath splits the path of a resource. It returns false for others.
func parsePath(p string) (path, bool) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	var out path
	switch {
	case len(parts) > 2 && parts[0] == "api":
		out.version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		out.group, out.version, parts = parts[1], parts[2], parts[3:]
	default:
		return out, false
	}
	if slices.Contains(parts, "") {
		return out, false
	}
	if parts[0] == "watch" && len(parts) > 1 {
		out.isOldWatch, parts = true, parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		out.namespace, parts = parts[1], parts[2:]
	}
	out.resource = parts[0]
	if len(parts) > 1 {
		out.name = parts[1]
	}
	if len(parts) > 2 {
		out.subresource = parts[2]
	}
	if out.subresource == proxy {
		out.proxied = proxied(p, out.name)
		return out, true
	}
	return out, len(parts) <= 3
}

// request is one request of a client.
type request struct {
	*server.KubeRequest
	w        http.ResponseWriter
	query    url.Values
	path     path
	resource *resource
	strict   []error // what the conversion of the body to JSON has found, for fieldValidation
}

func newRequest(r *server.KubeRequest, w http.ResponseWriter) *request {
	return &request{KubeRequest: r, w: w, query: r.URL.Query()}
}

// impersonates reports whether the client wants to act as another user.
func (r *request) impersonates() bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// isTrue reports whether a query parameter is set.
func (r *request) isTrue(name string) bool { return isTrue(r.query, name) }

// isTrue reads a query parameter as an API server: only false and 0 say no. Clients in Python
// send True.
func isTrue(query url.Values, name string) bool {
	values := query[name]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// verb returns the verb of the API for a request.
func (r *request) verb() (string, error) {
	if r.path.subresource != "" {
		return r.subresourceVerb()
	}
	named := r.path.name != ""
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	if isOfNoNamespace := r.resource.namespaced && r.path.namespace == ""; !isRead && (isOfNoNamespace || r.path.isOldWatch) {
		return "", errMethod() // nothing is created in all namespaces, nor deleted in all at once
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case r.path.isOldWatch, !named && r.isTrue("watch"):
			return "watch", nil
		case named:
			return "get", nil
		}
		return "list", nil
	case http.MethodDelete:
		if !named {
			return "deletecollection", nil
		}
		return "delete", nil
	}
	verbs := map[string]string{http.MethodPut: "update", http.MethodPatch: "patch"}
	if r.Method == http.MethodPost && !named {
		return "create", nil
	}
	if verb := verbs[r.Method]; verb != "" && named {
		return verb, nil
	}
	return "", errMethod()
}

// subresourceVerb is the verb for a path with a subresource.
func (r *request) subresourceVerb() (string, error) {
	switch r.path.subresource {
	case proxy:
		return r.proxyVerb()
	case "exec", "attach", "portforward":
		// By GET, too, as a WebSocket begins: who may read must not execute.
		if r.Method == http.MethodGet || r.Method == http.MethodPost {
			return "create", nil
		}
		return "", errMethod()
	}
	if verb := map[string]string{http.MethodGet: "get", http.MethodPut: "update", http.MethodPatch: "patch"}[r.Method]; verb != "" {
		return verb, nil
	}
	return "", errMethod()
}

// groupResource names the resource in errors.
func (r *request) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.path.group, Resource: r.path.resource}
}

// accepted is one media type of an Accept header.
type accepted struct {
	mediaType, as, group, version string
}

// accepts returns the media types of the Accept header, in their order.
func (r *request) accepts() (all []accepted) {
	for header := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		mediaType, params, err := mime.ParseMediaType(header)
		if err == nil {
			all = append(all, accepted{mediaType, params["as"], params["g"], params["v"]})
		}
	}
	return all
}

// form is how objects are sent.
type form string

// The forms of objects.
const (
	asObject  form = ""
	asTable   form = "Table"
	asPartial form = "PartialObjectMetadata"
)

// form returns the first form that the client accepts and that is served. A request that changes
// something is checked for it first: its client must not get an error for what was done.
func (r *request) form() (form, error) {
	if strings.Join(r.Header.Values("Accept"), "") == "" {
		return asObject, nil
	}
	for _, a := range r.accepts() {
		if a.mediaType != "application/json" && a.mediaType != "*/*" && a.mediaType != "application/*" {
			continue
		}
		switch {
		case a.as == "":
			return asObject, nil
		case a.group != "meta.k8s.io" || a.version != "v1":
		case a.as == string(asTable):
			_, err := r.includeObject()
			return asTable, err
		case a.as == string(asPartial), a.as == string(asPartial)+"List":
			return asPartial, nil
		}
	}
	return asObject, errNotAcceptable()
}

// isPretty reports whether people read the response.
func (r *request) isPretty() bool {
	if r.query.Has("pretty") {
		return r.isTrue("pretty")
	}
	agent := r.UserAgent()
	return slices.ContainsFunc([]string{"curl", "Wget", "Mozilla/5.0"}, func(reader string) bool { return strings.HasPrefix(agent, reader) })
}

// respond sends v as JSON.
func (r *request) respond(code int, v any) error {
	return r.respondAs("application/json", code, v)
}

// respondAs sends v as JSON of a media type.
func (r *request) respondAs(mediaType string, code int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if r.isPretty() {
		b = indent(b, "")
	}
	r.w.Header().Set("Content-Type", mediaType)
	r.send(code, append(b, '\n'))
	return nil
}

// send sends encoded JSON. A client that has gone is not an error.
func (r *request) send(code int, b []byte) {
	r.begin(code)
	_, _ = r.w.Write(b)
}

// begin sends the header of a response.
func (r *request) begin(code int) {
	if r.w.Header().Get("Content-Type") == "" {
		r.w.Header().Set("Content-Type", "application/json")
	}
	r.w.Header().Set("Cache-Control", "no-cache, private")
	r.w.WriteHeader(code)
}
