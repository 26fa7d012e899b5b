package syncloop

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// Each step in the lifecycle of a pod is one line, with its source.
func TestPodManager_LogsLifecycle(t *testing.T) {
	var log strings.Builder
	p := newPods(t, func(c *PodManagerConfig) {
		c.Logger, c.Admitters = logtest.NewLogger(&log, slog.LevelDebug), []Admitter{podLimit(2)}
		c.Inspector = running(func(uid types.UID) bool { return uid == "runs" || uid == "evicted" })
	})
	p.statuses.saved["done"] = corev1.PodStatus{Phase: corev1.PodSucceeded}
	p.statuses.saved["evicted"] = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: "low on memory",
	}}}
	deleted := newPod("a", static, deleting, func(p *Pod) { p.DeletionGracePeriodSeconds = new(int64(5)) })
	for _, tt := range []struct {
		op   podsource.Op
		pod  *Pod
		want string
	}{
		{podsource.Add, newPod("a", static), `level=DEBUG msg="pod added" pod=ns/a podUID=a source=test
level=INFO msg="pod admitted" pod=ns/a podUID=a source=file`},
		{podsource.Update, newPod("a", static), `level=INFO msg="pod updated" pod=ns/a podUID=a source=test`},
		{podsource.Reconcile, newPod("a", static), `level=DEBUG msg="pod refreshed" pod=ns/a podUID=a source=test`},
		{podsource.Delete, deleted, `level=INFO msg="pod deletion requested" pod=ns/a podUID=a source=test gracePeriod=5s`},
		{podsource.Add, newPod("runs", static), `level=DEBUG msg="pod added" pod=ns/runs podUID=runs source=test
level=INFO msg="pod adopted" pod=ns/runs podUID=runs source=file`},
		{podsource.Add, newPod("new"), `level=DEBUG msg="pod added" pod=ns/new podUID=new source=test
level=WARN msg="pod rejected" pod=ns/new podUID=new source="" reason=OutOfpods message="2 pods are here"`},
		{podsource.Add, newPod("done"), `level=DEBUG msg="pod added" pod=ns/done podUID=done source=test
level=INFO msg="pod already finished" pod=ns/done podUID=done source="" phase=Succeeded`},
		{podsource.Add, newPod("evicted"), `level=DEBUG msg="pod added" pod=ns/evicted podUID=evicted source=test
level=INFO msg="pod eviction resumed" pod=ns/evicted podUID=evicted message="low on memory"`},
		{podsource.Remove, newPod("a"), `level=INFO msg="pod removed from source" pod=ns/a podUID=a source=test`},
		{podsource.Remove, newPod("unknown"), ``},
		{podsource.Add, newPod("ends", static), `level=DEBUG msg="pod added" pod=ns/ends podUID=ends source=test
level=INFO msg="pod waiting for cleanup of an earlier pod of its UID" pod=ns/ends podUID=ends source=file`},
	} {
		p.w.states["ends"] = podworkers.State{Phase: podworkers.Terminating}
		log.Reset()
		p.do(tt.op, tt.pod)
		assert.Equal(t, tt.want, strings.TrimSpace(log.String()))
	}
}
