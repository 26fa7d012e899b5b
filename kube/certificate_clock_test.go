package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/certificate"

	"github.com/sublet-dev/agent/internal/clocktest"
)

// fakeManager is a certificate manager that records whether it runs.
type fakeManager struct{ started, stopped bool }

func (m *fakeManager) Start()                    { m.started = true }
func (m *fakeManager) Stop()                     { m.stopped = true }
func (m *fakeManager) Current() *tls.Certificate { return nil }
func (m *fakeManager) ServerHealthy() bool       { return true }

// A certificate is renewed in time after the clock of a board, which starts in 1970, was set.
func TestRunManager_AfterTheClockWasSet(t *testing.T) {
	const year = 365 * 24 * time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now()
	set := clocktest.BeforeSetBack(t, start, 56*year)
	times := []time.Time{start, set, set}
	now := func() (at time.Time) {
		at, times = times[0], times[1:]
		if len(times) == 0 {
			cancel()
		}
		return at
	}
	var managers []*fakeManager
	require.NoError(t, runManager(ctx, slog.New(slog.DiscardHandler), now, func() (certificate.Manager, error) {
		managers = append(managers, &fakeManager{})
		return managers[len(managers)-1], nil
	}))
	require.Len(t, managers, 2)
	for _, m := range managers {
		assert.True(t, m.started && m.stopped)
	}
}

// A manager that cannot be replaced goes on.
func TestRunManager_KeepsTheFirst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start, first := time.Now(), &fakeManager{}
	times := []time.Time{start, clocktest.BeforeSetBack(t, start, -8*time.Hour)}
	now := func() (at time.Time) {
		at, times = times[0], times[1:]
		return at
	}
	calls := 0
	require.NoError(t, runManager(ctx, slog.New(slog.DiscardHandler), now, func() (certificate.Manager, error) {
		if calls++; calls == 1 {
			return first, nil
		}
		assert.False(t, first.stopped)
		cancel()
		return nil, errors.New("input/output error")
	}))
	assert.Equal(t, 2, calls)
	assert.True(t, first.stopped, "at the end")
	require.EqualError(t, runManager(ctx, nil, nil, func() (certificate.Manager, error) { return nil, errors.New("damaged") }), "damaged")
}

func TestWasSet(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]bool{0: false, 59 * time.Second: false, -59 * time.Second: false, time.Minute: true, -8 * time.Hour: true, 20 * 365 * 24 * time.Hour: true} {
		assert.Equal(t, want, wasSet(clocktest.BeforeSetBack(t, now.Add(-time.Hour), d), now), d)
	}
}
