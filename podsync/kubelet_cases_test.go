package podsync

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubelettest"
)

// kubeletResolver is a line of the table of resolver configurations.
type kubeletResolver struct {
	Policy                     corev1.DNSPolicy
	HostNetwork                bool
	Config                     *corev1.PodDNSConfig
	ClusterDNS                 []string
	Domain, File               string
	Servers, Searches, Options []string
}

// Pods have the resolver configuration that the kubelet gives them.
func TestResolver_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "testdata/kubelet-resolvers.jsonl", func(t *testing.T, c kubeletResolver) {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		require.NoError(t, os.WriteFile(file, []byte(c.File), 0o600))
		var events eventList
		s := &Syncer{cfg: Config{Recorder: &events, Node: Node{ClusterDNS: c.ClusterDNS, ClusterDomain: c.Domain, ResolvConf: file}}}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
			Spec:       corev1.PodSpec{DNSPolicy: c.Policy, HostNetwork: c.HostNetwork, DNSConfig: c.Config},
		}
		d, err := s.resolver(pod)
		require.NoError(t, err)
		d = s.limitDNS(t.Context(), pod, &podState{}, d)
		require.Equal(t, c.Servers, none(d.Servers))
		require.Equal(t, c.Searches, none(d.Searches))
		require.Equal(t, c.Options, slices.Sorted(slices.Values(d.Options)))
	})
}

// none is nil for an empty list, which a table does not have.
func none(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}
