package kubeapi

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sublet-dev/agent/server"
)

// A path is that of a resource or none: no spelling leads to another right.
func TestParsePath(t *testing.T) {
	for text, want := range map[string]path{
		"/api/v1/pods":                         {version: "v1", resource: "pods"},
		"/api/v1/pods/":                        {version: "v1", resource: "pods"},
		"/api/v1/nodes/edge-1":                 {version: "v1", resource: "nodes", name: "edge-1"},
		"/api/v1/nodes/proxy/proxy/logs/a/":    {version: "v1", resource: "nodes", name: "proxy", subresource: "proxy", proxied: "/logs/a/"},
		"/api/v1/nodes/nodes/proxy":            {version: "v1", resource: "nodes", name: "nodes", subresource: "proxy", proxied: "/"},
		"/api/v1/nodes/n/proxy/x/../exec/a":    {version: "v1", resource: "nodes", name: "n", subresource: "proxy", proxied: "/exec/a"},
		"/api/v1/namespaces":                   {version: "v1", resource: "namespaces"},
		"/api/v1/namespaces/shop":              {version: "v1", resource: "namespaces", name: "shop"},
		"/api/v1/namespaces/shop/pods":         {version: "v1", namespace: "shop", resource: "pods"},
		"/api/v1/namespaces/shop/pods/a/log":   {version: "v1", namespace: "shop", resource: "pods", name: "a", subresource: "log"},
		"/api/v1/watch":                        {version: "v1", resource: "watch"},
		"/api/v1/watch/pods":                   {version: "v1", resource: "pods", isOldWatch: true},
		"/api/v1/watch/namespaces/shop/pods/a": {version: "v1", namespace: "shop", resource: "pods", name: "a", isOldWatch: true},
		"/api/v1/pods/namespaces/x":            {version: "v1", resource: "pods", name: "namespaces", subresource: "x"},
		"/apis/metrics.k8s.io/v1beta1/nodes/n": {group: "metrics.k8s.io", version: "v1beta1", resource: "nodes", name: "n"},
	} {
		got, ok := parsePath(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"/", "/api", "/api/v1", "/apis", "/apis/metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1", "/x/v1/pods", "/x/g/v1/pods", "/api/v1//pods", "/api/v1/pods//log", "/api/v1/namespaces//pods",
		"/api/v1/namespaces/shop/pods/a/log/x",
	} {
		_, ok := parsePath(text)
		assert.False(t, ok, text)
	}
}

func testRequest(method, target string, accept ...string) (*request, *httptest.ResponseRecorder) {
	r := httptest.NewRequest(method, target, http.NoBody)
	r.Header["Accept"] = accept
	w := httptest.NewRecorder()
	out := newRequest(&server.KubeRequest{Request: r}, w)
	out.path, _ = parsePath(r.URL.Path)
	out.resource = &resource{namespaced: true}
	return out, w
}

func TestRequest_Verb(t *testing.T) {
	const pods, pod = "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/pods/a"
	for _, c := range []struct{ method, target, verb string }{
		{"GET", pods, "list"},
		{"HEAD", pods, "list"},
		{"GET", pods + "?watch=1", "watch"},
		{"GET", pods + "?watch", "watch"},
		{"GET", pods + "?watch=True", "watch"}, // of Python's client
		{"GET", pods + "?watch=false", "list"},
		{"GET", pods + "?watch=False", "list"},
		{"GET", pods + "?watch=0&watch=1", "list"},
		{"GET", pod, "get"},
		{"GET", pod + "?watch=true", "get"},
		{"GET", "/api/v1/watch/pods", "watch"},
		{"DELETE", "/api/v1/watch/namespaces/shop/pods", ""},
		{"DELETE", "/api/v1/watch/namespaces/shop/pods/a", ""},
		{"DELETE", "/api/v1/pods", ""},
		{"POST", "/api/v1/pods", ""},
		{"GET", "/api/v1/pods", "list"},
		{"POST", pods, "create"},
		{"POST", pod, ""},
		{"PUT", pod, "update"},
		{"PUT", pods, ""},
		{"PATCH", pod, "patch"},
		{"PATCH", pods, ""},
		{"DELETE", pod, "delete"},
		{"DELETE", pods, "deletecollection"},
		{"OPTIONS", pod, ""},
		{"GET", pod + "/exec", "create"},
		{"POST", pod + "/attach", "create"},
		{"PUT", pod + "/exec", ""},
		{"DELETE", pod + "/portforward", ""},
		{"GET", pod + "/log", "get"},
		{"PUT", pod + "/resize", "update"},
		{"PATCH", pod + "/resize", "patch"},
		{"POST", pod + "/log", ""},
		{"DELETE", pod + "/status", ""},
	} {
		r, _ := testRequest(c.method, c.target)
		verb, err := r.verb()
		assert.Equal(t, c.verb, verb, c.method+" "+c.target)
		if c.verb == "" {
			assert.True(t, apierrors.IsMethodNotSupported(err), "%s %s: %v", c.method, c.target, err)
		} else {
			assert.NoError(t, err)
		}
	}
}

func TestRequest_Form(t *testing.T) {
	const table = "application/json;as=Table;g=meta.k8s.io;v=v1"
	for _, c := range []struct {
		accept []string
		want   form
		ok     bool
	}{
		{nil, asObject, true},
		{[]string{"*/*"}, asObject, true},
		{[]string{"application/*"}, asObject, true},
		{[]string{"application/json"}, asObject, true},
		{[]string{table}, asTable, true},
		{[]string{"application/yaml, " + table}, asTable, true},
		{[]string{"application/yaml", "application/json"}, asObject, true},
		{[]string{"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}, asPartial, true},
		{[]string{"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, asPartial, true},
		{[]string{"application/json;as=Table;g=other;v=v1"}, asObject, false},
		{[]string{"application/json;as=Table;g=meta.k8s.io;v=v1beta1"}, asObject, false},
		{[]string{"application/json;as=Table;g=meta.k8s.io;v=v2, application/json"}, asObject, true},
		{[]string{"application/vnd.kubernetes.protobuf"}, asObject, false},
		{[]string{"application/json;as=Other;g=meta.k8s.io;v=v1"}, asObject, false},
	} {
		r, _ := testRequest(http.MethodGet, "/api/v1/pods", c.accept...)
		got, err := r.form()
		assert.Equal(t, c.want, got, c.accept)
		assert.Equal(t, c.ok, err == nil, c.accept)
	}
	r, w := testRequest(http.MethodGet, "/api/v1/pods")
	require.NoError(t, r.respond(http.StatusOK, "x"))
	assert.Equal(t, "no-cache, private", w.Header().Get("Cache-Control"))
}

func TestRequest_Watch(t *testing.T) {
	const initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	for _, c := range []struct {
		query   string
		after   uint64 // 0: from the beginning
		initial bool
		err     string
	}{
		{"", 0, false, ""},
		{"resourceVersion=0", 0, false, ""},
		{"resourceVersion=7", 7, false, ""},
		{"resourceVersion=x", 0, false, "resourceVersion: invalid value"},
		{initial, 0, false, ""},
		{initial + "&allowWatchBookmarks=true", 0, true, ""},
		{"sendInitialEvents=true", 0, false, "sendInitialEvents requires"},
		{"sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=7", 7, false, ""},
		{"sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=7", 0, false, "sendInitialEvents requires"},
		{initial + "&resourceVersion=x", 0, false, "resourceVersion: invalid value"},
		{"resourceVersionMatch=NotOlderThan&resourceVersion=7", 0, false, "resourceVersionMatch is forbidden for watch"},
	} {
		r, _ := testRequest(http.MethodGet, "/api/v1/pods?"+c.query)
		opts, err := r.listOptions(true)
		var after *uint64
		var initial bool
		if err == nil {
			after, _, initial, err = watchStart(opts)
		}
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err, c.query)
		assert.Equal(t, c.initial, initial, c.query)
		if c.after == 0 {
			assert.Nil(t, after, c.query)
		} else if assert.NotNil(t, after, c.query) {
			assert.Equal(t, c.after, *after)
		}
	}
	for query, want := range map[string]time.Duration{"timeoutSeconds=5": 5 * time.Second, "timeoutSeconds=0": 0, "": 0, "timeoutSeconds=-1": -time.Second, "timeoutSeconds=99999999999999": math.MaxInt32 * time.Second} {
		r, _ := testRequest(http.MethodGet, "/api/v1/pods?"+query)
		opts, err := r.listOptions(true)
		require.NoError(t, err)
		got := watchTimeout(opts.TimeoutSeconds)
		if want == 0 {
			assert.GreaterOrEqual(t, got, minWatchTime)
			assert.Less(t, got, 2*minWatchTime)
		} else {
			assert.Equal(t, want, got)
		}
	}
}

// A rate is over a time in which the container ran, and not too long ago.
func TestNextSample(t *testing.T) {
	now := time.Now()
	last := rateSample{at: now.Add(-maxRateTime), used: 7}
	for name, c := range map[string]struct {
		last rateSample
		used uint64
		rate bool
	}{
		"first": {rateSample{}, 7, false}, "idle": {last, 7, true}, "busy": {last, 9, true}, "restarted": {last, 6, false},
		"too old": {rateSample{at: last.at.Add(-1), used: 7}, 9, false}, "too early": {rateSample{at: now, used: 7}, 9, false},
	} {
		assert.Equal(t, c.rate, nextSample(c.last, now, c.used).rate != nil, name)
	}
}
