package podnet_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/podnet"
)

// Where nothing answers, a connection is given up with its request.
func TestNewTransport_EndsConnectionWithRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		took := make(chan time.Duration, 1)
		client := &http.Client{Transport: podnet.NewTransport(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			took <- time.Since(start)
			return nil, ctx.Err()
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := container().NewRequest(ctx, &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}, "test")
		require.NoError(t, err)
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, <-took)
	})
}

// A connection that was made does not depend on the context of its dial, and neither does one without a request.
func TestNewTransport_PassesOn(t *testing.T) {
	want, other := net.Pipe()
	defer other.Close()
	defer want.Close()
	dial := podnet.NewTransport(func(ctx context.Context, network, address string) (net.Conn, error) {
		assert.Equal(t, "tcp 10.0.0.1:80", network+" "+address)
		return want, ctx.Err()
	}).DialContext
	got, err := dial(t.Context(), "tcp", "10.0.0.1:80")
	require.NoError(t, err)
	assert.Same(t, want, got)
}

// The end of a request is the error of its connection, whichever of both a client sees first.
func TestNewTransport_ErrorOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := container().NewRequest(ctx, &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}, "test")
		require.NoError(t, err)
		transport := podnet.NewTransport(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		_, err = transport.DialContext(context.WithoutCancel(req.Context()), "tcp", "10.0.0.1:80")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		lost := errors.New("lost")
		req, err = container().NewRequest(t.Context(), &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}, "test")
		require.NoError(t, err)
		transport = podnet.NewTransport(func(context.Context, string, string) (net.Conn, error) { return nil, lost })
		_, err = transport.DialContext(req.Context(), "tcp", "10.0.0.1:80")
		require.Equal(t, lost, err)
	})
}
