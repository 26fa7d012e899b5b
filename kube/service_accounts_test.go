package kube

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
)

var _ credentialprovider.ServiceAccounts = (*Objects)(nil)

// A service account of a pod is known while the API server is away, and forgotten with the pod.
func TestObjects_ServiceAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa", UID: "sa-uid", Annotations: map[string]string{"a": "b"}}}
		b := startObjects(t, t.TempDir(), account).run()
		b.setPods(podOf())
		for range 2 {
			got, err := b.objects.ServiceAccount(t.Context(), "default", "sa")
			require.NoError(t, err)
			assert.Equal(t, account.UID, got.UID)
			assert.Equal(t, account.Annotations, got.Annotations)
			b.unreachable()
			b.wait(2 * sweepPeriod)
		}
		b.setPods()
		b.wait(2 * sweepPeriod)
		_, err := b.objects.ServiceAccount(t.Context(), "default", "sa")
		require.ErrorContains(t, err, "connection refused")
	})
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, "").run()
		_, err := b.objects.ServiceAccount(t.Context(), "default", "sa")
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	})
}
