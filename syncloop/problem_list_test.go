package syncloop_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/syncloop"
)

func TestProblems(t *testing.T) {
	now := time.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"}, Status: corev1.PodStatus{Reason: "Evicted", Message: "low on memory"}}
	broken := podsource.SourceError{Location: "/etc/manifests/web.yaml", Err: errors.New("no image"), Since: now}
	stuck := pleg.InspectionError{UID: "u1", Err: errors.New("runtime hangs"), Since: now.Add(2)}
	problems := syncloop.Problems([]podsource.SourceError{broken}, []syncloop.PodProblem{{Pod: pod, Since: now.Add(1)}},
		[]pleg.InspectionError{stuck, {UID: "u2", Err: errors.New("unknown"), Since: now.Add(3)}}, func() []*corev1.Pod { return []*corev1.Pod{pod} })
	var texts []string
	for i, p := range problems {
		texts = append(texts, p.Error())
		assert.Equal(t, now.Add(time.Duration(i)), p.Since)
	}
	assert.Equal(t, []string{
		"/etc/manifests/web.yaml: no image", "pod ns/web with UID u1: pod ns/web: Evicted: low on memory",
		"pod ns/web with UID u1: runtime hangs", "pod with UID u2: unknown",
	}, texts)
	require.ErrorIs(t, problems[0], broken.Err)
	assert.Empty(t, syncloop.Problems(nil, nil, nil, nil))
}
