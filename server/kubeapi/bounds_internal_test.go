package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/server"
)

// chunks is a response that knows how much of it was encoded at once.
type chunks struct {
	*httptest.ResponseRecorder
	largest int
}

func (c *chunks) Write(b []byte) (int, error) {
	c.largest = max(c.largest, len(b))
	return c.ResponseRecorder.Write(b)
}

// A client that reads slowly keeps a part of a list in memory, whatever the form is. The parts are those of the list.
func TestAPI_SendsListsInParts(t *testing.T) {
	events := NewEvents()
	a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Events: events})
	require.NoError(t, err)
	const most = 500
	text := strings.Repeat("x", 1000)
	for i := range most {
		if i <= 2 || i == most-1 { // so many there are
			assertLists(t, a, i == most-1)
		}
		events.Record(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("e", i)}, Message: text})
	}
}

// assertLists checks the lists of all events in each form.
func assertLists(t *testing.T, a *API, isLarge bool) {
	t.Helper()
	for _, accept := range []string{
		"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		list := func(query string) *chunks {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/events?includeObject=Object"+query, http.NoBody)
			r.Header.Set("Accept", accept)
			w := &chunks{ResponseRecorder: httptest.NewRecorder()}
			a.ServeKube(w, &server.KubeRequest{Request: r, User: &authenticationv1.UserInfo{Username: "owner"}})
			require.Equal(t, http.StatusOK, w.Code)
			require.True(t, json.Valid(w.Body.Bytes()), w.Body)
			return w
		}
		compact, pretty := list(""), list("&pretty=true")
		var indented bytes.Buffer
		require.NoError(t, json.Indent(&indented, compact.Body.Bytes(), "", "  "))
		assert.Equal(t, indented.String(), pretty.Body.String(), "only the form differs")
		for _, w := range []*chunks{compact, pretty} {
			assert.Less(t, w.largest, 20<<10)
			if isLarge {
				assert.Greater(t, w.Body.Len(), 50<<10)
			}
		}
	}
}

// Requests that come at once do not have the runtime list its images once for each.
func TestAPI_SharesRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Node: func(context.Context) (*corev1.Node, error) {
			calls.Add(1)
			time.Sleep(time.Second)
			return &corev1.Node{}, nil
		}})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { assert.NoError(t, a.refreshNow(t.Context(), a.find(path{version: "v1", resource: "nodes"}))) })
		}
		wg.Wait()
		assert.Equal(t, int32(2), calls.Load())
	})
}

// Many requests at once ask the node twice: once for those that came before the question, and once for the others.
func TestRefresher_SharesUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefresher()
		var updates int
		failure := errors.New("the runtime is down")
		update := func() error {
			updates++
			time.Sleep(time.Second)
			if updates == 1 {
				return failure
			}
			return nil
		}
		var wg sync.WaitGroup
		refresh := func() {
			time.Sleep(time.Millisecond)
			wg.Go(func() { assert.NoError(t, r.do(t.Context(), update)) })
		}
		wg.Go(func() { assert.ErrorIs(t, r.do(t.Context(), update), failure, "of its own") })
		for range 100 {
			refresh()
		}
		time.Sleep(time.Second)
		refresh() // during the second
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.do(canceled, update), context.Canceled)
		wg.Wait()
		assert.Equal(t, 3, updates)
		require.NoError(t, r.do(t.Context(), update))
		assert.Equal(t, 4, updates, "nothing is as new as the request")
	})
}
