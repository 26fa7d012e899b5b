package kube_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
)

func TestNew_ReportsAllErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  kube.Config
		want []string
	}{
		"empty":        {kube.Config{}, []string{"Config.Client: required", "Config.NodeName: required"}},
		"invalid name": {kube.Config{Client: fake.NewClientset(), NodeName: "../n"}, []string{`Config.NodeName: invalid name "../n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kube.New(tc.cfg)
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
	k, err := kube.New(kube.Config{Client: fake.NewClientset(), NodeName: "10.0.0.1"})
	require.NoError(t, err)
	require.NotNil(t, k)
}

// Events do not delay statuses, and nothing delays the lease: each client has its own
// limits.
func TestConfigFor_ClientsHaveTheirOwnLimits(t *testing.T) {
	cfg, err := kube.ConfigFor(&rest.Config{Host: "https://server.example", QPS: 1, Burst: 3})
	require.NoError(t, err)
	limiters := map[flowcontrol.RateLimiter]bool{}
	for _, client := range []kubernetes.Interface{cfg.Client, cfg.EventClient, cfg.LeaseClient} {
		limiters[client.CoreV1().RESTClient().GetRateLimiter()] = true
	}
	require.Len(t, limiters, 3)
	_, err = kube.ConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "/missing"}})
	require.ErrorContains(t, err, "kube: client: ")
}

func TestKube_WritesEventsWithTheEventClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, events := kubetest.NewFake(t), kubetest.NewFake(t)
		k, err := kube.New(kube.Config{Client: other.Client(), EventClient: events.Client(), NodeName: nodeName})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		k.Events().Record(&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Reason: "Started", Message: "m", Count: 1,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "a"},
		})
		time.Sleep(time.Second)
		cancel()
		require.NoError(t, <-done)
		require.Len(t, events.Events(), 1)
		require.Empty(t, other.Events())
	})
}
