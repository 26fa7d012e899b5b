package kubeapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// Each kind of request takes its right, and no client gets more without one.
func TestAPI_AuthorizationTable(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	var asked []string
	for _, c := range []struct{ method, path, body, right string }{
		{"GET", pods, "", "list shop pods"},
		{"GET", "/api/v1/pods", "", "list pods"},
		{"GET", pods + "?watch=true", "", "watch shop pods"},
		{"GET", "/api/v1/watch/namespaces/shop/pods", "", "watch shop pods"},
		{"GET", pods + "/a", "", "get shop pods a"},
		{"HEAD", pods + "/a", "", "get shop pods a"},
		{"GET", pods + "/a/log", "", "get shop pods/log a"},
		{"GET", pods + "/a/exec?command=id", "", "create shop pods/exec a"},
		{"POST", pods + "/a/exec?command=id", "", "create shop pods/exec a"},
		{"GET", pods + "/a/attach", "", "create shop pods/attach a"},
		{"POST", pods + "/a/portforward", "", "create shop pods/portforward a"},
		{"POST", pods, manifest("x"), "create shop pods"},
		{"PUT", pods + "/a", manifest("a"), "update shop pods a"},
		{"PATCH", pods + "/a", "{}", "patch shop pods a"},
		{"PATCH", pods + "/a/ephemeralcontainers", "{}", "patch shop pods/ephemeralcontainers a"},
		{"PUT", pods + "/a/resize", manifest("a"), "update shop pods/resize a"},
		{"DELETE", pods + "/a", "", "delete shop pods a"},
		{"DELETE", pods, "", "deletecollection shop pods"},
		{"GET", "/api/v1/nodes/" + nodeName, "", "get nodes " + nodeName},
		{"GET", "/api/v1/namespaces/shop", "", "get shop namespaces shop"},
		{"GET", "/api/v1/namespaces/shop/configmaps", "", "list shop configmaps"},
		{"GET", "/api/v1/events", "", "list events"},
		{"GET", "/api/v1/namespaces/shop/secrets/s", "", "get shop secrets s"},
		{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", "", "list shop pods metrics.k8s.io"},
	} {
		name := c.method + " " + c.path
		for credentials, code := range map[string]int{"": 401, "Bearer wrong": 401} {
			res := e.do(c.method, c.path, c.body, "Authorization", credentials)
			assert.Equal(t, code, res.code, name+credentials)
			assert.Equal(t, "Bearer", res.header.Get("WWW-Authenticate"), name)
			if c.method != http.MethodHead {
				assert.Equal(t, metav1.StatusReasonUnauthorized, res.status(t).Reason, name)
			}
		}
		for _, outcome := range []error{nil, errors.New("webhook is down: it said hush")} {
			asked = nil
			e.setAllow(func(user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
				resource := a.Resource
				if a.Subresource != "" {
					resource += "/" + a.Subresource
				}
				asked = append(asked, strings.Join(strings.Fields(strings.Join([]string{a.Verb, a.Namespace, resource, a.Name, a.Group}, " ")), " "))
				assert.Equal(t, "owner", user.Username)
				return outcome != nil, outcome
			})
			res := e.do(c.method, c.path, c.body)
			e.setAllow(nil)
			assert.Equal(t, []string{c.right}, asked, name)
			want := http.StatusForbidden
			if outcome != nil { // an error denies, whatever it comes with
				want = http.StatusInternalServerError
			}
			assert.Equal(t, want, res.code, name)
			assert.NotContains(t, res.body, "hush", name)
		}
	}
	assert.Empty(t, e.restarts, "nothing was done")
	assert.Nil(t, e.sourcePod("x"))
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
	assert.Equal(t, http.StatusBadRequest, e.do("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "{").code)
}
