package kube_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podsource"
)

// refusing is the transport to a machine on which no API server runs. It counts watches.
type refusing struct{ watches atomic.Int32 }

// RoundTrip implements http.RoundTripper.
func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Has("watch") {
		r.watches.Add(1)
	}
	return nil, syscall.ECONNREFUSED
}

// An agent that has never reached its API server does not wait for a back-off when it stops.
func TestKube_StopsWithoutAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		run         func(*kube.Kube) func(context.Context) error
		least, most int32 // watches
	}{
		"pods": {func(k *kube.Kube) func(context.Context) error {
			return func(ctx context.Context) error { return k.Pods().Watch(ctx, func(podsource.Set) {}) }
		}, 60, 300},
		"Node": {func(k *kube.Kube) func(context.Context) error {
			n, err := k.Node(kube.NodeConfig{Reporter: &hungReporter{}})
			require.NoError(t, err)
			return n.Run
		}, 10, 60},
	} {
		t.Run(name, func(t *testing.T) {
			for after := 10 * time.Minute; after < 10*time.Minute+20*time.Second; after += 5 * time.Second {
				synctest.Test(t, func(t *testing.T) {
					transport := &refusing{}
					client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://away", QPS: 1000, Burst: 1000}, &http.Client{Transport: transport})
					require.NoError(t, err)
					k, err := kube.New(kube.Config{Client: client, NodeName: nodeName})
					require.NoError(t, err)
					run := test.run(k)
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- run(ctx) }()
					time.Sleep(after)
					cancel()
					stopped := time.Now()
					require.NoError(t, <-done)
					assert.Less(t, time.Since(stopped), 100*time.Millisecond)
					assert.Less(t, transport.watches.Load(), test.most)
					assert.Greater(t, transport.watches.Load(), test.least)
				})
			}
		})
	}
}
