package podworkers_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// logTo returns a change of a Config that writes records without time to log.
func logTo(log *bytes.Buffer) func(*podworkers.Config) {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "stack" {
			return slog.Attr{}
		}
		return a
	}
	return func(c *podworkers.Config) {
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	}
}

// PW-1: each phase of a pod is logged once at Info with its reason, and syncs are
// not.
func TestWorkers_LogsPhases(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*podworkers.Workers)
		want []string
	}{
		{"deleted", func(w *podworkers.Workers) {
			w.Update(create(newTestPod("a")))
			synctest.Wait()
			w.Update(podworkers.Update{Pod: newTestPod("a", deleted(5))})
		}, []string{
			`level=INFO msg="pod terminating" pod=ns/a podUID=a reason=Deleted gracePeriod=5s`,
			`level=INFO msg="pod terminated" pod=ns/a podUID=a reason=Deleted`,
			`level=INFO msg="pod finished" pod=ns/a podUID=a reason=Deleted`,
		}},
		{"killed with a reason", func(w *podworkers.Workers) {
			w.Update(create(newTestPod("a")))
			w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Reason: "DeadlineExceeded", GracePeriod: 2 * time.Second}})
		}, []string{
			`level=INFO msg="pod terminating" pod=ns/a podUID=a reason=DeadlineExceeded gracePeriod=2s`,
			`level=INFO msg="pod terminated" pod=ns/a podUID=a reason=DeadlineExceeded`,
			`level=INFO msg="pod finished" pod=ns/a podUID=a reason=DeadlineExceeded`,
		}},
		{"orphan", func(w *podworkers.Workers) {
			w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "o", Namespace: "ns", Name: "left"}})
		}, []string{
			`level=INFO msg="pod terminating" pod=ns/left podUID=o reason=Orphaned gracePeriod=30s`,
			`level=INFO msg="pod finished" pod=ns/left podUID=o reason=Orphaned`,
		}},
		{"running", func(w *podworkers.Workers) { w.Update(create(newTestPod("a"))) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				w := runWorkers(t, &fakeSyncer{}, logTo(&log))
				tt.do(w)
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Equal(t, tt.want, lines(&log))
			})
		})
	}
}

// PW-8, PW-15: failed and panicked calls are logged with the pod; a cancelled call
// is not a failure.
func TestWorkers_LogsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &fakeSyncer{do: func(ctx context.Context, call string, uid types.UID) (runtime.SyncResult, error) {
			switch {
			case call != "sync":
				return runtime.SyncResult{}, nil
			case uid == "panics":
				panic("boom")
			case uid == "cancelled":
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{}, errors.New("no such image")
		}}
		w := runWorkers(t, f, logTo(&log))
		for _, uid := range []string{"fails", "panics", "cancelled"} {
			w.Update(create(newTestPod(uid)))
			synctest.Wait()
		}
		w.Update(podworkers.Update{Pod: newTestPod("cancelled", phase(corev1.PodFailed))})
		synctest.Wait()
		assert.Equal(t, []string{
			`level=WARN msg="pod sync failed" pod=ns/fails podUID=fails phase=Syncing err="no such image"`,
			`level=ERROR msg="pod sync panicked" pod=ns/panics podUID=panics panic=boom`,
			`level=WARN msg="pod sync failed" pod=ns/panics podUID=panics phase=Syncing err="syncer panicked: boom"`,
		}, lines(&log)[:3])
		for _, line := range lines(&log)[3:] {
			assert.Contains(t, line, "level=INFO")
		}
	})
}

// A failure that repeats is logged once until a call succeeds or fails otherwise.
func TestWorkers_LogsRepeatedFailureOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		errs := []string{"no disk", "no disk", "no disk", "no image", "no disk", "", "no disk", "no disk"}
		calls := 0
		f := &fakeSyncer{do: func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			calls++
			if calls > len(errs) || errs[calls-1] == "" {
				return runtime.SyncResult{}, nil
			}
			return runtime.SyncResult{}, errors.New(errs[calls-1])
		}}
		w := runWorkers(t, f, logTo(&log))
		w.Update(create(newTestPod("a")))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Greater(t, calls, len(errs))
		var logged []string
		for _, line := range lines(&log) {
			_, err, _ := strings.Cut(line, "err=")
			logged = append(logged, err)
		}
		assert.Equal(t, []string{`"no disk"`, `"no image"`, `"no disk"`, `"no disk"`}, logged)
	})
}

func lines(log *bytes.Buffer) []string {
	if log.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(log.String()), "\n")
}
