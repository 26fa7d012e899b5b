package kube_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent/kube"
)

// A claim is read from the API server by its name, with its status.
func TestKube_ResourceClaim(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims/gpu" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"gpu","uid":"u"},
			"status":{"allocation":{"devices":{"results":[{"driver":"gpu.vendor.example"}]}}}}`))
	}))
	defer s.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	k, err := kube.New(kube.Config{Client: client, NodeName: "node"})
	require.NoError(t, err)
	c, err := k.ResourceClaim(t.Context(), "lab", "gpu")
	require.NoError(t, err)
	require.Equal(t, "gpu.vendor.example", c.Status.Allocation.Devices.Results[0].Driver)
	_, err = k.ResourceClaim(t.Context(), "lab", "other")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
