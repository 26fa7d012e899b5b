package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/stats"
)

// hungStats does not end a measurement before its context.
type hungStats struct{ agent.Stats }

func (hungStats) Summary(ctx context.Context, _ string, _ []*corev1.Pod) (stats.Summary, error) {
	<-ctx.Done()
	return stats.Summary{}, ctx.Err()
}

func scrapeOf(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	return w.Body.String()
}

// The metrics of the agent are there at once while a measurement hangs, as it does with a runtime that does not answer: they tell of
// that. Those of containers are there before the time of a scrape is over.
func TestMetrics_HungMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := newMetrics()
		require.NoError(t, err)
		a, err := agent.New(
			agent.WithSimulatedRuntime(), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithHooks(m.hooks()),
			agent.WithSource("memory", podsource.NewMemory()), agent.WithStats(func(c *agent.Components) (agent.Stats, error) {
				s, err := agent.NewStats(c)
				return hungStats{s}, err
			}))
		require.NoError(t, err)
		handlers, err := m.handlers(a, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		startTime := time.Now()
		assert.Contains(t, scrapeOf(t, handlers["/metrics"], "/metrics"), "\nkubelet_pleg_last_seen_seconds ")
		assert.Zero(t, time.Since(startTime))
		assert.Contains(t, scrapeOf(t, handlers["/metrics/cadvisor"], "/metrics/cadvisor"), "\ncontainer_scrape_error 1\n")
		assert.Less(t, time.Since(startTime), 10*time.Second)
		cancel()
		require.NoError(t, <-done)
	})
}

// As with a kubelet, a metric that cannot be had does not hide the others. It is logged.
func TestMetrics_OneFails(t *testing.T) {
	m, err := newMetrics()
	require.NoError(t, err)
	a, err := agent.New(agent.WithSimulatedRuntime(), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSource("memory", podsource.NewMemory()))
	require.NoError(t, err)
	var log logtest.Buffer
	handlers, err := m.handlers(a, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	require.NoError(t, m.agent.Register(twice{prometheus.NewDesc("twice", "Twice the same.", nil, nil)}))
	assert.Contains(t, scrapeOf(t, handlers["/metrics"], "/metrics"), "\nkubelet_desired_pods{")
	assert.Contains(t, log.String(), "metrics incomplete")
}

// twice is a collector with one series twice.
type twice struct{ desc *prometheus.Desc }

func (c twice) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c twice) Collect(ch chan<- prometheus.Metric) {
	for range 2 {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1)
	}
}
