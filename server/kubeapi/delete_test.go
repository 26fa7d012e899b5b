package kubeapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

func TestDelete_PreconditionsAndOptions(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	client := e.client.CoreV1().Pods("shop")
	other, version := types.UID("other"), "1"
	for name, p := range map[string]metav1.Preconditions{"UID": {UID: &other}, "version": {ResourceVersion: &version}} {
		err := client.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &p})
		assert.True(t, apierrors.IsConflict(err), "%s: %v", name, err)
		assert.ErrorContains(t, err, "Precondition failed", name)
	}
	for query, body := range map[string]string{"?gracePeriodSeconds=x": "", "?gracePeriodSeconds=": "", "": "{", "?x=y": `{"kind":"Pod","apiVersion":"v1"}`} {
		assert.Equal(t, http.StatusBadRequest, e.do("DELETE", pods+"/a"+query, body).code, query+body)
	}
	assert.True(t, apierrors.IsNotFound(client.Delete(t.Context(), "none", metav1.DeleteOptions{})))
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &created.UID}}))
	e.create("b")
	for query, grace := range map[string]string{"?gracePeriodSeconds=5": "5", "?gracePeriodSeconds=-1": "1"} {
		assert.Contains(t, e.do("DELETE", pods+"/b"+query+"&dryRun=All", "").body, `"deletionGracePeriodSeconds":`+grace, query)
	}
	// A second deletion can shorten the time, and is not another generation.
	for _, grace := range []string{"5", "7", "3"} {
		assert.Contains(t, e.do("DELETE", pods+"/b?gracePeriodSeconds="+grace, "").body, `"generation":2`, grace)
	}
	pod, err := client.Get(t.Context(), "b", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, int64(3), *pod.DeletionGracePeriodSeconds)
}

// The form of the answer is known before a pod is deleted.
func TestDelete_CollectionInOtherForms(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	assert.Equal(t, http.StatusNotAcceptable, e.do("DELETE", pods, "", "Accept", "application/yaml").code)
	pod, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Nil(t, pod.DeletionTimestamp)
	res := e.do("DELETE", pods, "", "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	require.Equal(t, http.StatusOK, res.code)
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal([]byte(res.body), &list))
	assert.Equal(t, "PartialObjectMetadataList", list.Kind)
	require.Len(t, list.Items, 1)
	assert.Nil(t, list.Items[0].DeletionTimestamp, "the pods are returned as they were")
	pod, err = e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotNil(t, pod.DeletionTimestamp)
	assert.NotContains(t, res.body, `"spec"`)
}

func TestDelete_Collection(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	e.create("b")
	client := e.client.CoreV1().Pods("shop")
	require.NoError(t, client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=a"}))
	for name, deleted := range map[string]bool{"a": true, "b": false} {
		pod, err := client.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, deleted, pod.DeletionTimestamp != nil, name)
	}
	assert.Error(t, client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a in b"}))
}

// SV-12: no more is deleted than was asked for.
func TestDelete_CollectionIsBounded(t *testing.T) {
	e := newEnv(t, nil)
	client := e.client.CoreV1().Pods("shop")
	for _, name := range []string{"a", "b", "c"} {
		e.create(name)
	}
	for path, code := range map[string]int{
		"/api/v1/pods": http.StatusMethodNotAllowed, pods + "?continue=abc": http.StatusGone, pods + "?limit=x": http.StatusBadRequest,
		pods + "?resourceVersionMatch=Exact": http.StatusUnprocessableEntity, pods + "?propagationPolicy=x": http.StatusUnprocessableEntity, pods + "?limit=2": http.StatusOK,
	} {
		assert.Equal(t, code, e.do("DELETE", path, "").code, path)
	}
	for name, deleted := range map[string]bool{"a": true, "b": true, "c": false} {
		pod, err := client.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, deleted, pod.DeletionTimestamp != nil, name)
	}
}

// SV-10
func TestDelete_StaticPodIsRestarted(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	client := e.client.CoreV1().Pods("shop")
	w, err := client.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	assert.Equal(t, "ADDED a", next(t, w))
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	assert.Equal(t, "uid-a", string((<-e.restarts).UID))
	assert.Equal(t, "MODIFIED a", next(t, w))
	pod, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotNil(t, pod.DeletionTimestamp, "Terminating")
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	e.restarted <- nil
	assert.Equal(t, "DELETED a", next(t, w), "kubectl delete waits for it")
	assert.Equal(t, "ADDED a", next(t, w))
	pod, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, "uid-a", string(pod.UID))
	assert.Nil(t, pod.DeletionTimestamp)
	assert.Equal(t, "uid-a", pod.Annotations["kubernetes.io/config.mirror"])
	assert.Empty(t, e.restarts, "once")

	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}), "by its new UID")
	<-e.restarts
	assert.Equal(t, "MODIFIED a", next(t, w))
	e.restarted <- context.DeadlineExceeded
	assert.Equal(t, "MODIFIED a", next(t, w), "a restart that failed: it is the same pod")
	after, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, pod.UID, after.UID)
}

func TestDelete_WhatCannotBe(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) { cfg.Operator = nil })
	clusters := staticPod("c", nil)
	clusters.Annotations["kubernetes.io/config.source"] = "api"
	e.setPods(staticPod("a", nil), clusters)
	res := e.do("DELETE", pods+"/a", "")
	assert.Equal(t, http.StatusMethodNotAllowed, res.code, res.body)
	e = newEnv(t, nil)
	e.setPods(clusters)
	res = e.do("DELETE", pods+"/c", "")
	assert.Equal(t, http.StatusForbidden, res.code)
	assert.Contains(t, res.status(t).Message, "through the API server")
	assert.Empty(t, e.restarts)
}

func TestAPI_ReadOnlyWithoutStore(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) { cfg.Store = nil })
	e.setPods(staticPod("a", nil))
	for _, c := range [][2]string{{"POST", pods}, {"PUT", pods + "/a"}, {"PATCH", pods + "/a"}} {
		body := manifest("a")
		res := e.do(c[0], c[1], body, "Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[c[0] == "PATCH"])
		assert.Equal(t, http.StatusMethodNotAllowed, res.code, c)
		assert.Contains(t, res.status(t).Message, "a writable store is not enabled", c)
	}
	assert.Equal(t, http.StatusNotFound, e.do("PATCH", pods+"/a/ephemeralcontainers", "{}").code)
	require.NoError(t, e.client.CoreV1().Pods("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	<-e.restarts
	e.restarted <- nil
}
