package provider_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podstream"
)

// quiet is a provider whose containers print nothing while a client is attached.
type quiet struct {
	complete
	attached, left chan struct{}
}

func (q *quiet) AttachToContainer(ctx context.Context, _, _, _ string, _ podstream.Options) error {
	q.attached <- struct{}{}
	<-ctx.Done()
	q.left <- struct{}{}
	return ctx.Err()
}

// An attachment ends with its client, though the container neither writes nor reads.
func TestRuntime_AttachEndsWithItsClient(t *testing.T) {
	q := &quiet{complete{updating: updating{newMemory()}}, make(chan struct{}), make(chan struct{}, 1)}
	a := startReal(t, q)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Attach(ctx, "default", "web", "c", podstream.Options{Stdout: io.Discard}) }()
	<-q.attached
	leave()
	require.Error(t, <-ended)
	select {
	case <-q.left:
	case <-time.NewTimer(30 * time.Second).C:
		require.Fail(t, "the provider is attached for a client that has gone")
	}
}
