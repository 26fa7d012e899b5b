package kubeapi_test

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

const theNode = "/api/v1/nodes/" + nodeName

// requests are of each kind, with the right that each takes.
var requests = []struct {
	method, path, body, right string
	code                      int // for who has the right
}{
	{"GET", pods, "", "list shop pods", 200},
	{"GET", "/api/v1/pods", "", "list pods", 200},
	{"GET", pods + "?watch=true&timeoutSeconds=1", "", "watch shop pods", 200},
	{"GET", "/api/v1/watch/namespaces/shop/pods?timeoutSeconds=1", "", "watch shop pods", 200},
	{"GET", pods + "?fieldSelector=metadata.name%3Da", "", "list shop pods a", 200}, // kubectl wait pod/a
	{"GET", pods + "?watch=true&timeoutSeconds=1&fieldSelector=status.phase%3DRunning,metadata.name%3Da", "", "watch shop pods a", 200},
	{"GET", pods + "?fieldSelector=metadata.name!%3Da", "", "list shop pods", 200},
	{"GET", pods + "?fieldSelector=x", "", "list shop pods", 400},
	{"GET", pods + "/a", "", "get shop pods a", 200},
	{"HEAD", pods + "/a", "", "get shop pods a", 200},
	{"GET", pods + "/a/log", "", "get shop pods/log a", 200},
	{"GET", pods + "/a/exec?command=id", "", "create shop pods/exec a", 405}, // the node has no streams
	{"POST", pods + "/a/exec?command=id", "", "create shop pods/exec a", 405},
	{"GET", pods + "/a/attach", "", "create shop pods/attach a", 405},
	{"POST", pods + "/a/portforward", "", "create shop pods/portforward a", 405},
	{"POST", pods, manifest("x"), "create shop pods", 201},
	{"PUT", pods + "/a", manifest("a"), "update shop pods a", 403}, // it is static
	{"PATCH", pods + "/a", "{}", "patch shop pods a", 415},         // no type of a patch
	{"PATCH", pods + "/a/ephemeralcontainers", "{}", "patch shop pods/ephemeralcontainers a", 415},
	{"PUT", pods + "/a/resize", manifest("a"), "update shop pods/resize a", 403},
	{"DELETE", pods + "/a", "", "delete shop pods a", 200},
	{"DELETE", pods, "", "deletecollection shop pods", 200},
	{"GET", theNode, "", "get nodes " + nodeName, 200},
	{"GET", theNode + "/proxy/healthz", "", "get nodes/proxy " + nodeName, 200},
	{"GET", theNode + ":10250/proxy/pods", "", "get nodes/proxy " + nodeName + ":10250", 200},
	{"GET", theNode + "x/proxy/healthz", "", "get nodes/proxy " + nodeName + "x", 404}, // another one
	{"GET", theNode + "/proxy/nothing", "", "get nodes/proxy " + nodeName, 404},
	{"GET", theNode + "/proxy", "", "get nodes/proxy " + nodeName, 404},
	{"GET", theNode + "/proxy/exec/shop/a/main?command=id", "", "create nodes/proxy " + nodeName, 405},
	{"GET", theNode + "/proxy/x/../attach/shop/a/main", "", "create nodes/proxy " + nodeName, 405},
	{"POST", theNode + "/proxy/run/shop/a/main?cmd=id", "", "create nodes/proxy " + nodeName, 405},
	{"GET", "/api/v1/namespaces/shop", "", "get shop namespaces shop", 200},
	{"GET", "/api/v1/namespaces/shop/configmaps", "", "list shop configmaps", 200},
	{"GET", "/api/v1/events", "", "list events", 200},
	{"GET", "/api/v1/namespaces/shop/secrets/s", "", "get shop secrets s", 403}, // no client gets them
	{"GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName, "", "get kube-node-lease leases " + nodeName + " coordination.k8s.io", 200},
	{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", "", "list shop pods metrics.k8s.io", 200},
}

// rightOf returns attributes as requests has them.
func rightOf(a *authorizationv1.ResourceAttributes) string {
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return strings.Join(strings.Fields(strings.Join([]string{a.Verb, a.Namespace, resource, a.Name, a.Group}, " ")), " ")
}

// Each kind of request takes its right, for each kind of client, and no client gets more
// without one.
func TestAPI_AuthorizationTable(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, ca.pem(), 0o600))
	owner := ca.client(t, "owner")
	for name, c := range map[string]struct {
		certificate *tls.Certificate
		token       string
		allowed     bool
		webhook     error
		code        int // 0: that of the request
	}{
		"anonymous":                  {nil, "", true, nil, 401},
		"wrong token":                {nil, "Bearer wrong", true, nil, 401},
		"token without rights":       {nil, "Bearer good", false, nil, 403},
		"token, webhook down":        {nil, "Bearer good", true, errors.New("it said hush"), 500}, // an error denies, whatever it comes with
		"certificate of a stranger":  {new(stranger.client(t, "owner")), "", true, nil, 401},
		"certificate without rights": {&owner, "", false, nil, 403},
		"certificate, webhook down":  {&owner, "", true, errors.New("it said hush"), 500},
		"certificate with rights":    {&owner, "", true, nil, 0},
		"token with rights":          {nil, "Bearer good", true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(_ *kubeapi.Config, srv *server.Config) {
				srv.Authenticators = append(srv.Authenticators, &server.ClientCertificates{CAFile: file})
			})
			if transport, ok := e.http.Transport.(*http.Transport); c.certificate != nil && assert.True(t, ok) {
				transport.TLSClientConfig.Certificates = []tls.Certificate{*c.certificate}
			}
			for _, r := range requests {
				e.setPods(staticPod("a", nil))
				if c.code == 0 && r.method == http.MethodDelete {
					e.restarted <- nil
				}
				var asked []string
				e.setAllow(func(user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
					asked = append(asked, rightOf(a))
					assert.Equal(t, "owner", user.Username)
					return c.allowed, c.webhook
				})
				requireResponse(t, e.do(r.method, r.path, r.body, "Authorization", c.token), r.method+" "+r.path, c.code, r.code)
				e.setAllow(nil)
				if c.code == http.StatusUnauthorized {
					assert.Empty(t, asked, r.path)
				} else {
					assert.Equal(t, []string{r.right}, asked, r.path)
				}
			}
			if c.code != 0 {
				assert.Empty(t, e.restarts, "nothing was done")
				assert.Nil(t, e.sourcePod("x"))
			}
		})
	}
}

// requireResponse checks a response: a denial, or code 0, which is that of the request.
func requireResponse(t *testing.T, res response, name string, code, ofRequest int) {
	t.Helper()
	if code == 0 {
		assert.Equal(t, ofRequest, res.code, "%s: %s", name, res.body)
		return
	}
	assert.Equal(t, code, res.code, "%s: %s", name, res.body)
	assert.NotContains(t, res.body, "hush", name)
	if code == http.StatusUnauthorized {
		assert.Equal(t, "Bearer", res.header.Get("WWW-Authenticate"), name)
	}
	if !strings.HasPrefix(name, http.MethodHead) {
		assert.EqualValues(t, code, res.status(t).Code, name)
	}
}

func TestAPI_MessageOfADenial(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	e.setAllow(func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) { return false, nil })
	assert.Equal(t, `pods "a" is forbidden: user "owner" cannot get resource "pods/log" in API group "" in the namespace "shop"`, e.get(pods+"/a/log").status(t).Message)
	assert.Contains(t, e.get("/api/v1/nodes").status(t).Message, "at the cluster scope")
}

func (e *env) setAllow(f func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allow = f
}

// Discovery is for all who are authenticated, and for no others.
func TestAPI_DiscoveryNeedsAuthentication(t *testing.T) {
	e := newEnv(t, nil)
	e.setAllow(func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) { return false, nil })
	for _, path := range []string{"/version", "/api", "/apis", "/api/v1", "/openapi/v3", "/openapi/v3/api/v1"} {
		assert.Equal(t, http.StatusOK, e.get(path).code, path)
		assert.Equal(t, http.StatusUnauthorized, e.get(path, "Authorization", "").code, path)
	}
	assert.Equal(t, http.StatusUnauthorized, e.get("/readyz", "Authorization", "").code)
}

// A server that serves clients without credentials gives them no more than the Authorizer does, and
// AllowAll is for those who have some.
func TestAPI_AnonymousClients(t *testing.T) {
	const review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	spec := `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`
	e := newEnv(t, func(_ *kubeapi.Config, srv *server.Config) { srv.Anonymous, srv.Authorizer = true, kubeapi.AllowAll() })
	for _, r := range []struct{ method, path, body string }{
		{"GET", pods, ""},
		{"POST", pods, manifest("x")},
		{"DELETE", pods, ""},
		{"GET", "/api/v1/nodes", ""},
		{"GET", "/healthz", ""},
		{"GET", "/api", ""},
		{"GET", "/api/v1", ""},
		{"GET", "/openapi/v3", ""},
		{"POST", review, spec},
		{"GET", "/nothing", ""},
	} {
		assert.Equal(t, http.StatusForbidden, e.do(r.method, r.path, r.body, "Authorization", "").code, r.path)
	}
	assert.Nil(t, e.sourcePod("x"))
	assert.Equal(t, http.StatusOK, e.get("/api").code)
	assert.Equal(t, http.StatusCreated, e.do("POST", review, spec).code)

	e = newEnv(t, func(_ *kubeapi.Config, srv *server.Config) { srv.Anonymous = true })
	e.setAllow(func(user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		return user.Username == "system:anonymous" && a.Resource == "pods", nil
	})
	assert.Equal(t, http.StatusOK, e.get(pods, "Authorization", "").code, "what it has a right to")
	assert.Equal(t, http.StatusForbidden, e.get("/api/v1/nodes", "Authorization", "").code)
}

// Clients learn only that the authorizer has failed; the log says why.
func TestAPI_LogsFailedAuthorizations(t *testing.T) {
	var log logtest.Buffer
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) { cfg.Logger = logtest.NewLogger(&log, slog.LevelWarn) })
	e.setAllow(func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
		return false, errors.New("webhook is down")
	})
	assert.Equal(t, http.StatusInternalServerError, e.get(pods).code)
	for _, want := range []string{"authorization failed", "user=owner", "verb=list", "resource=pods", "webhook is down"} {
		assert.Contains(t, log.String(), want)
	}
	for range 20 {
		e.get(pods)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "authorization failed"), "a client cannot fill the log")
}

// Without TLS a token would be sent in plain text.
func TestServer_KubeAPINeedsTLS(t *testing.T) {
	api, err := kubeapi.New(kubeapi.Config{NodeName: nodeName, Pods: new(env).allPods})
	require.NoError(t, err)
	_, err = server.New(server.Config{Addr: "127.0.0.1:0", KubeAPI: api})
	require.ErrorContains(t, err, "KubeAPI needs TLS")
	e := newEnv(t, nil)
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		assert.Equal(t, "ok", e.get(path).body, path)
	}
}

func TestAPI_ReviewsOfOnesOwnRights(t *testing.T) {
	e := newEnv(t, nil)
	e.setAllow(func(_ *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		if a.Resource == "nodes" {
			return true, errors.New("webhook is down")
		}
		return a.Resource == "pods" && a.Subresource == "" && a.Verb == "get" && a.Group == "", nil
	})
	access := func(spec authorizationv1.SelfSubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		t.Helper()
		review, err := e.client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		require.NoError(t, err)
		return review.Status
	}
	for right, allowed := range map[authorizationv1.ResourceAttributes]bool{
		{Verb: "get", Resource: "pods", Namespace: "shop"}: true, {Verb: "delete", Resource: "pods", Namespace: "shop"}: false, {Verb: "get", Resource: "nodes"}: false,
	} {
		assert.Equal(t, allowed, access(authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &right}).Allowed, "%v", right)
	}
	assert.True(t, access(authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/version"}}).Allowed)
	assert.False(t, access(authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "post", Path: "/version"}}).Allowed)
	_, err := e.client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	require.ErrorContains(t, err, "exactly one of")

	rules, err := e.client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "shop"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, []authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}, rules.Status.ResourceRules)
	assert.True(t, rules.Status.Incomplete, "the rights to nodes are not known")
	assert.NotEmpty(t, rules.Status.EvaluationError)

	me, err := e.client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "owner", me.Status.UserInfo.Username)
	assert.Contains(t, me.Status.UserInfo.Groups, "system:authenticated")
	const reviews, get = "/apis/authorization.k8s.io/v1/selfsubject", `{"resourceAttributes":{"verb":"get"}}`
	for _, c := range []struct {
		path, body string
		code       int
	}{
		{reviews + "accessreviews", "{", 400},
		{reviews + "accessreviews", "{}", 422},
		{reviews + "accessreviews", `{"kind":"Pod","spec":` + get + `}`, 400},
		{reviews + "accessreviews", `{"apiVersion":"authorization.k8s.io/v1beta1","spec":` + get + `}`, 400},
		{reviews + "accessreviews", `{"spec":` + get + `}`, 201},
		{reviews + "rulesreviews", "{}", 400},
		{reviews + "rulesreviews", `{"spec":{"namespace":"shop"}}`, 201},
		{"/apis/authentication.k8s.io/v1/selfsubjectreviews", "", 400},
		{"/apis/authentication.k8s.io/v1/selfsubjectreviews", "{}", 201},
	} {
		assert.Equal(t, c.code, e.do("POST", c.path, c.body).code, c.path+c.body)
	}
}

// Who may ask about his rights alone cannot have the node fill its memory: a few bytes of YAML can stand for gigabytes.
func TestAccess_LargeYAML(t *testing.T) {
	e := newEnv(t, nil)
	body := "kind: SelfSubjectAccessReview\nspec: &a {nonResourceAttributes: {verb: &b " + strings.Repeat("x", 10_000) + "}}\nall: [" + strings.Repeat("*b,", 1000) + "]\n"
	res := e.do("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, "Content-Type", "application/yaml")
	assert.Equal(t, http.StatusBadRequest, res.code)
	assert.Contains(t, res.status(t).Message, "expanded aliases")
	res = e.do("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "spec: {nonResourceAttributes: {verb: &a get, path: *a}}", "Content-Type", "application/yaml")
	assert.Equal(t, http.StatusCreated, res.code)
	assert.Contains(t, res.body, `"allowed":true`)
}
