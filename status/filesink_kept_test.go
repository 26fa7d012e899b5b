package status_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// slowSink takes long to store a status and to delete one.
type slowSink struct {
	took    time.Duration
	deleted int
}

func (s *slowSink) SetStatus(context.Context, *corev1.Pod, corev1.PodStatus) error {
	time.Sleep(s.took)
	return nil
}

func (s *slowSink) DeleteStatus(context.Context, *corev1.Pod) error {
	time.Sleep(s.took)
	s.deleted++
	return nil
}

// decorated is a sink of an application with a FileSink in it.
type decorated struct{ *status.FileSink }

// ST-9: the file of a pod that is deleted and has finished stays until no source contains the pod, however long
// other sinks take. They have one deletion, and the UID can be used again.
func TestFileSink_KeepsDeletedPodsOfTheirSource(t *testing.T) {
	for name, tc := range map[string]struct {
		took, forget time.Duration
		decorated    bool
	}{
		"the others have the deletion":                        {time.Second, time.Hour, false},
		"the others have the status alone":                    {4 * time.Second, 6 * time.Second, false},
		"no sink has anything when the source has removed it": {time.Second, 0, false},
		"it is part of another sink":                          {time.Second, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				file, err := status.NewFileSink(dir)
				require.NoError(t, err)
				slow := &slowSink{took: tc.took}
				var sink status.Sink = file
				if tc.decorated {
					sink = decorated{file}
				}
				m, stop := start(t, status.Config{Sinks: []status.Sink{slow, sink}})
				files := func() int {
					pods, err := file.Load()
					require.NoError(t, err)
					return len(pods)
				}
				p := pod("policy=Never", "main:c")
				p.DeletionTimestamp = new(metav1.Now())
				last := runtime.Report{Observed: view(exited("c", 0, 3)), Termination: &runtime.Termination{}, Finished: true}
				m.Observe(p, last)
				if tc.forget > 0 {
					pause(tc.forget)
					assert.Equal(t, 1, files())
					assert.Empty(t, m.Pods())
				}
				m.Forget(p.UID)
				m.Forget(p.UID)
				pause(time.Hour)
				assert.Zero(t, files())
				assert.Equal(t, 1, slow.deleted)
				assert.Empty(t, m.PodUIDs())

				p = p.DeepCopy()
				p.DeletionTimestamp = nil
				m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
				pause(time.Hour)
				assert.Equal(t, 1, files())
				m.Forget(p.UID)
				m.Observe(p, last)
				pause(time.Hour)
				assert.Zero(t, files())
				assert.Equal(t, 2, slow.deleted)
				require.NoError(t, stop())
			})
		})
	}
}
