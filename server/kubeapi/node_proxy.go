package kubeapi

import (
	"net/http"
	"net/url"
	slashpath "path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// proxy is the subresource of a node that has the paths of the kubelet's API.
const proxy = "proxy"

// kubeletPort may follow the name of a node, as clients of an API server write it.
const kubeletPort = ":10250"

// proxied returns the path of the kubelet's API in a path of nodes/proxy, without dots that lead to another one.
func proxied(p, node string) string {
	_, rest, _ := strings.Cut(p, "/"+node+"/"+proxy)
	clean := slashpath.Clean("/" + rest)
	if strings.HasSuffix(rest, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// proxyVerb is the verb for a path of the kubelet's API. What runs a process is created, by which
// method ever: who may read a node must not execute.
func (r *request) proxyVerb() (string, error) {
	switch first, _, _ := strings.Cut(r.path.proxied[1:], "/"); first {
	case "run", "exec", "attach", "portForward":
		return "create", nil
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return "get", nil
	case http.MethodPost:
		return "create", nil
	}
	return "", errMethod()
}

// proxyNode hands a request to the node, as an API server hands it to a kubelet: the answer is the
// node's own, errors included.
func (a *API) proxyNode(r *request) error {
	if strings.TrimSuffix(r.path.name, kubeletPort) != a.cfg.NodeName {
		return apierrors.NewNotFound(r.groupResource(), r.path.name)
	}
	out := r.Clone(r.Context())
	out.URL = &url.URL{Path: r.path.proxied, RawQuery: r.URL.RawQuery}
	out.RequestURI = out.URL.RequestURI()
	r.Node.ServeHTTP(r.w, out)
	return nil
}
