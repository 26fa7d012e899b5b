package podnet_test

import (
	"bufio"
	"bytes"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/podnet"
)

func container() *podnet.Container {
	return &podnet.Container{Name: "main", PodIP: "10.0.0.1", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}, {Name: "zero"}}}
}

func TestContainer_Address(t *testing.T) {
	for name, tc := range map[string]struct {
		host, podIP string
		port        intstr.IntOrString
		want, err   string
	}{
		"a number":                {"", "10.0.0.1", intstr.FromInt32(80), "10.0.0.1:80", ""},
		"a number as text":        {"", "10.0.0.1", intstr.FromString("80"), "10.0.0.1:80", ""},
		"a name":                  {"", "10.0.0.1", intstr.FromString("web"), "10.0.0.1:8080", ""},
		"the lowest":              {"", "10.0.0.1", intstr.FromInt32(1), "10.0.0.1:1", ""},
		"the highest":             {"", "10.0.0.1", intstr.FromInt32(65535), "10.0.0.1:65535", ""},
		"IPv6":                    {"", "fd00::1", intstr.FromInt32(80), "[fd00::1]:80", ""},
		"a host":                  {"db.example", "", intstr.FromInt32(80), "db.example:80", ""},
		"a host in brackets":      {"[::1]", "10.0.0.1", intstr.FromInt32(80), "[::1]:80", ""},
		"no port":                 {"", "10.0.0.1", intstr.FromInt32(0), "", "container main has no port 0"},
		"too high":                {"", "10.0.0.1", intstr.FromInt32(65536), "", "container main has no port 65536"},
		"another name":            {"", "10.0.0.1", intstr.FromString("db"), "", "container main has no port db"},
		"a name without a number": {"", "10.0.0.1", intstr.FromString("zero"), "", "container main has no port zero"},
		"no address":              {"", "", intstr.FromInt32(80), "", "pod has no IP"},
	} {
		c := container()
		c.PodIP = tc.podIP
		got, err := c.Address(tc.host, tc.port)
		assert.Equal(t, tc.want, got, name)
		if tc.err != "" {
			assert.EqualError(t, err, tc.err, name)
		}
	}
}

// Nothing but the pod's host and port is reached, whatever the path says.
func TestContainer_NewRequestURL(t *testing.T) {
	for path, want := range map[string]string{
		"": "http://10.0.0.1:8080/", "/": "http://10.0.0.1:8080/", "healthz": "http://10.0.0.1:8080/healthz", "/a?b=c": "http://10.0.0.1:8080/a?b=c",
		"/a%2Fb": "http://10.0.0.1:8080/a%2Fb", "a%2Fb": "http://10.0.0.1:8080/a%2Fb", "/a?": "http://10.0.0.1:8080/a?", "?": "http://10.0.0.1:8080/?", "/%zz": "http://10.0.0.1:8080/%25zz",
		"//user:pw@other.example/x": "http://10.0.0.1:8080/x", "https://other.example/y#z": "http://10.0.0.1:8080/y", "a:b": "http://10.0.0.1:8080/",
	} {
		req, err := container().NewRequest(t.Context(), &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web")}, "test")
		require.NoError(t, err, path)
		assert.Equal(t, want, req.URL.String(), path)
	}
	req, err := container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(443), Scheme: corev1.URISchemeHTTPS, Host: "h"}, "")
	require.NoError(t, err)
	assert.Equal(t, "https://h:443/", req.URL.String())
	_, err = container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(0)}, "")
	require.EqualError(t, err, "container main has no port 0")
	_, err = container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(1), Host: "a b"}, "")
	require.ErrorContains(t, err, "invalid URL escape")
	_, err = container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(1), Scheme: "a#b"}, "")
	require.EqualError(t, err, `invalid scheme "a#b"`)
}

func TestContainer_NewRequestHeaders(t *testing.T) {
	for name, tc := range map[string]struct {
		headers []corev1.HTTPHeader
		want    http.Header
		host    string
	}{
		"by default": {nil, http.Header{"User-Agent": {"kube-probe/1.37"}, "Accept": {"*/*"}}, "10.0.0.1:80"},
		"the pod's own": {
			[]corev1.HTTPHeader{{Name: "accept", Value: "text/plain"}, {Name: "User-Agent", Value: "mine"}, {Name: "X", Value: "1"}, {Name: "X", Value: "2"}, {Name: "host", Value: "web"}},
			http.Header{"User-Agent": {"mine"}, "Accept": {"text/plain"}, "X": {"1", "2"}},
			"web",
		},
		"none": {
			[]corev1.HTTPHeader{{Name: "Accept"}, {Name: "User-Agent"}}, http.Header{"User-Agent": {""}}, "10.0.0.1:80",
		},
	} {
		req, err := container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(80), HTTPHeaders: tc.headers}, "kube-probe/1.37")
		require.NoError(t, err)
		assert.Equal(t, tc.want, req.Header, name)
		assert.Equal(t, tc.host, req.Host, name)
	}
}

// Whatever a pod says, the request is one request to its address.
func FuzzContainer_NewRequest(f *testing.F) {
	f.Add("/healthz?x=1", "X-Token", "a", "HTTP")
	f.Add("//user:pw@other.example/x", "Host", "other", "https")
	f.Add("//@x", "X", "y", "a#b")
	f.Add("/a\r\nX: y", "X", "a\r\nY: z", "")
	f.Fuzz(func(t *testing.T, path, name, value, scheme string) {
		req, err := container().NewRequest(t.Context(), &corev1.HTTPGetAction{
			Path: path, Port: intstr.FromString("web"), Scheme: corev1.URIScheme(scheme), HTTPHeaders: []corev1.HTTPHeader{{Name: name, Value: value}},
		}, "test")
		if err != nil {
			return
		}
		require.Equal(t, "10.0.0.1:8080", req.URL.Host)
		require.Nil(t, req.URL.User)
		var wire bytes.Buffer
		if req.Write(&wire) != nil {
			return // refused when it is sent
		}
		sent := bufio.NewReader(&wire)
		got, err := http.ReadRequest(sent)
		if err != nil {
			return
		}
		require.Equal(t, http.MethodGet, got.Method)
		require.Zero(t, sent.Buffered(), "nothing follows the request")
	})
}
