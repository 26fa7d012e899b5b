package podsync

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// loggedState is what the log has of a pod already: each exit and each back-off is
// logged once, not with every sync that observes it.
type loggedState struct {
	exits    map[string]struct{}  // exited containers by id
	backOffs map[string]time.Time // end of the last back-off by container name
}

// sameBackOff is the difference up to which two ends belong to one back-off. The end is
// computed in each sync from times that are rounded.
const sameBackOff = time.Second

// restore takes the exits as logged that a previous process has recorded in the status
// of the pod, and those of earlier attempts.
func (l *loggedState) restore(status corev1.PodStatus, observed runtime.Pod) {
	recorded, latest := map[string]bool{}, map[string]uint32{}
	for c := range podspec.ContainerStatuses(&status) {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil {
				_, id, _ := strings.Cut(t.ContainerID, "://")
				recorded[id] = true
			}
		}
	}
	for i := range observed.Containers {
		c := &observed.Containers[i]
		latest[c.Name] = max(latest[c.Name], c.Attempt)
	}
	l.exits = map[string]struct{}{}
	for i := range observed.Containers {
		if c := &observed.Containers[i]; recorded[c.ID] || c.Attempt < latest[c.Name] {
			l.exits[c.ID] = struct{}{}
		}
	}
}

// logExits reports the containers that have exited since the last call. The termination
// message is left out, because the container has written it.
func (s *Syncer) logExits(pod *corev1.Pod, st *podState, observed runtime.Pod) {
	var exits map[string]struct{}
	for i := range observed.Containers {
		c := &observed.Containers[i]
		if c.State != runtime.Exited {
			continue
		}
		if exits == nil {
			exits = map[string]struct{}{}
		}
		exits[c.ID] = struct{}{}
		if _, ok := st.logged.exits[c.ID]; ok {
			continue
		}
		s.cfg.Logger.Info("container exited", logattr.Pod(pod), logattr.PodUID(pod.UID),
			slog.String("containerName", c.Name), slog.String("containerID", c.ID), slog.Uint64("attempt", uint64(c.Attempt)),
			slog.Int("exitCode", int(c.ExitCode)), slog.String("reason", c.Reason))
		if s.cfg.Hooks.ContainerExited != nil {
			s.cfg.Hooks.ContainerExited(pod, *c)
		}
	}
	st.logged.exits = exits
}

// logBackOffs reports the back-offs that have begun since the last call, to the log and the hook,
// and those of containers that crash as events.
func (s *Syncer) logBackOffs(pod *corev1.Pod, st *podState, failures map[string]runtime.Failure) {
	for _, name := range slices.Sorted(maps.Keys(failures)) {
		f := failures[name]
		if f.Until.IsZero() || f.Until.Sub(st.logged.backOffs[name]).Abs() <= sameBackOff {
			continue
		}
		if st.logged.backOffs == nil {
			st.logged.backOffs = map[string]time.Time{}
		}
		st.logged.backOffs[name] = f.Until
		if s.cfg.Hooks.BackOffStarted != nil {
			s.cfg.Hooks.BackOffStarted(pod, name, f)
		}
		if f.Reason == runtime.ReasonCrashLoop && s.cfg.Recorder != nil { // other back-offs follow a failure that has an event
			s.cfg.Recorder.Record(podspec.NewContainerEvent(pod, name, corev1.EventTypeWarning, reasonBackOff,
				fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", name, pod.Name, pod.Namespace, pod.UID), time.Now()))
		}
		attrs := []any{logattr.Pod(pod), logattr.PodUID(pod.UID)}
		if name != "" {
			attrs = append(attrs, slog.String("containerName", name))
		}
		s.cfg.Logger.Info("back-off started", append(attrs, slog.String("reason", f.Reason), slog.Time("until", f.Until))...)
	}
}

// logPlan logs at debug level what a sync is going to do.
func (s *Syncer) logPlan(ctx context.Context, pod *corev1.Pod, plan []runtime.Action) {
	if len(plan) == 0 || !s.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	actions := make([]string, len(plan))
	for i := range plan {
		actions[i] = strings.TrimSpace(plan[i].Type.String() + " " + plan[i].Container)
	}
	s.cfg.Logger.Debug("pod sync planned", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.Any("actions", actions))
}
