package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
)

// hungReporter is the reporter of a node whose runtime stops answering.
type hungReporter struct {
	hung     atomic.Bool
	features []string
}

func (r *hungReporter) At(ctx context.Context, _ time.Time) (corev1.NodeStatus, error) {
	status := corev1.NodeStatus{Conditions: r.Conditions(), DeclaredFeatures: r.features}
	if r.hung.Load() {
		<-ctx.Done() // as a list of its images
		return status, ctx.Err()
	}
	return status, nil
}

func (r *hungReporter) Conditions() []corev1.NodeCondition {
	ready := corev1.ConditionTrue
	if r.hung.Load() {
		ready = corev1.ConditionFalse
	}
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "Test"}}
}

// runReporting runs a Node with a reporter, until stop is called.
func runReporting(t *testing.T, fake *kubetest.Fake, reporter *hungReporter) (stop func()) {
	t.Helper()
	n, err := newTestKube(t, fake).Node(kube.NodeConfig{Reporter: reporter})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return func() { cancel(); require.NoError(t, <-done) }
}

// A field that the API server does not take is no reason to send the status each time.
func TestNode_SendsARefusedFieldRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		var patches atomic.Int32
		fake.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/status") {
				return false
			}
			patches.Add(1)
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			var patch map[string]map[string]any
			assert.NoError(t, json.Unmarshal(body, &patch))
			delete(patch["status"], "declaredFeatures")
			body, err = json.Marshal(patch)
			assert.NoError(t, err)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return false
		}
		existing := &corev1.Node{}
		existing.Name = nodeName
		fake.Put("nodes", existing)
		reporter := &hungReporter{features: []string{"a"}}
		stop := runReporting(t, fake, reporter)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 2, patches.Load(), "the second one shows that nobody else was it")
		changed := fake.Node(nodeName)
		changed.Status.Conditions[0].Status = corev1.ConditionUnknown // as by the node controller
		fake.Put("nodes", changed)
		time.Sleep(15 * time.Second)
		assert.Equal(t, corev1.ConditionTrue, fake.Node(nodeName).Status.Conditions[0].Status)
		stop()
	})
}

// What another client writes just before a status is sent is in the answer to it, but is not what the server has made of it.
func TestNode_CorrectsWhatAnotherWroteMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		var races atomic.Bool
		fake.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch && races.CompareAndSwap(true, false) {
				other := fake.Node(nodeName)
				other.Status.DeclaredFeatures = []string{"other"}
				fake.Put("nodes", other)
			}
			return false
		}
		reporter := &hungReporter{features: []string{"a"}}
		stop := runReporting(t, fake, reporter)
		time.Sleep(time.Minute)
		changed := fake.Node(nodeName)
		changed.Status.NodeInfo.KubeletVersion = "other" // a reason to send the status
		races.Store(true)
		fake.Put("nodes", changed)
		time.Sleep(25 * time.Second)
		assert.False(t, races.Load())
		assert.Equal(t, []string{"a"}, fake.Node(nodeName).Status.DeclaredFeatures)
		assert.Equal(t, kube.Version, fake.Node(nodeName).Status.NodeInfo.KubeletVersion)
		stop()
	})
}

// A runtime that answers nothing any more must not keep the Node from being reported as not Ready.
func TestNode_ReportsARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		reporter := &hungReporter{}
		stop := runReporting(t, fake, reporter)
		ready := func() corev1.ConditionStatus {
			synctest.Wait()
			node := fake.Node(nodeName)
			require.NotNil(t, node)
			require.Len(t, node.Status.Conditions, 1)
			return node.Status.Conditions[0].Status
		}
		time.Sleep(5 * time.Second)
		require.Equal(t, corev1.ConditionTrue, ready())
		reporter.hung.Store(true)
		time.Sleep(15 * time.Second)
		assert.Equal(t, corev1.ConditionFalse, ready())
		reporter.hung.Store(false)
		time.Sleep(15 * time.Second)
		assert.Equal(t, corev1.ConditionTrue, ready())
		stop()
	})
}
