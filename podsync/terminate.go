package podsync

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
)

// ErrStillRunning is why a termination is retried: the runtime reported that the pod
// was stopped, but an inspection found running containers.
var ErrStillRunning = errors.New("containers are still running")

// Terminate stops the containers of the pod within the grace period of t and records
// their results. It blocks until they have stopped or ctx is done. To shorten the grace
// period, the caller cancels ctx and calls Terminate again. Success means that nothing
// of the pod runs, and that it has nothing left that others get once it has ended.
//
// A pod without containers in its spec is an orphan, known only from the runtime. It
// has no status, and all its resources are removed.
func (s *Syncer) Terminate(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error {
	orphan := len(pod.Spec.Containers) == 0
	st := s.state(pod.UID)
	defer st.collectErrors()()
	s.logExits(pod, st, observed)
	if !orphan {
		observed = s.markExclusiveCPUs(pod, observed)
		report := s.report(pod, st, observed)
		report.Termination = &t
		s.cfg.Statuses.Observe(pod, report)
	}
	if s.cfg.Probes != nil {
		s.cfg.Probes.StopLivenessAndStartup(pod.UID)
	}
	if err := s.cfg.Runtime.Kill(ctx, pod, observed, t); err != nil {
		s.emitOnce(ctx, pod, st, reasonKill, err)
		return fmt.Errorf("kill pod: %w", err)
	}
	// An inspection that began in this same instant may have missed the stop, so that one is requested. stopped is not
	// later than that, or another one would have to follow.
	stopped := time.Now()
	s.cfg.PodCache.RequestInspection(pod.UID)
	final, err := s.cfg.PodCache.GetNewerThan(ctx, pod.UID, stopped)
	if err != nil {
		return fmt.Errorf("inspect terminated pod: %w", err)
	}
	if final.CouldHaveRunningContainers() {
		return fmt.Errorf("kill pod: %w: %s", ErrStillRunning, runningNames(final))
	}
	st.final = &final
	s.logExits(pod, st, final)
	if orphan {
		return s.removeAll(ctx, pod, final)
	}
	if !t.Drained && s.hasUnreleased(pod) { // others get it once the pod is reported as ended
		if err := s.releaseInjections(ctx, pod.UID); err != nil {
			s.emitOnce(ctx, pod, st, reasonCleanup, err)
			return err
		}
	}
	report := s.report(pod, st, final)
	report.Termination = &t
	s.cfg.Statuses.Observe(pod, report)
	if s.cfg.Probes != nil {
		s.cfg.Probes.RemovePod(pod.UID)
	}
	return nil
}

// Finish releases the resources of a terminated pod: volumes, cgroup and directory, and
// if the pod is deleted also its exited containers, sandboxes and logs. The final
// status is reported after all of that has succeeded.
func (s *Syncer) Finish(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	st := s.state(pod.UID)
	defer st.collectErrors()()
	if st.final == nil { // a previous process has terminated the pod
		observed, err := s.cfg.PodCache.GetNewerThan(ctx, pod.UID, time.Time{})
		if err != nil {
			return fmt.Errorf("inspect terminated pod: %w", err)
		}
		st.final = &observed
	}
	if err := s.release(ctx, pod, *st.final, t.Deleted); err != nil {
		s.emitOnce(ctx, pod, st, reasonCleanup, err)
		return err
	}
	s.cfg.Statuses.Observe(pod, runtime.Report{Observed: *st.final, Termination: &t, Finished: true})
	s.forget(pod.UID)
	return nil
}

// removeAll removes the resources of an orphan.
func (s *Syncer) removeAll(ctx context.Context, pod *corev1.Pod, final runtime.Pod) error {
	if s.cfg.Probes != nil {
		s.cfg.Probes.RemovePod(pod.UID)
	}
	if err := s.release(ctx, pod, final, true); err != nil {
		return err
	}
	s.forget(pod.UID)
	return nil
}

// release continues after a failure, so that a mount that is busy does not keep a
// cgroup, and joins the errors. The directory of the pod is removed last, and only if
// nothing is mounted in it.
//
// What the runtime cannot remove of a pod that does not run is left to garbage collection:
// that may stay so, and the pod and the next static pod of its name must not wait for it.
func (s *Syncer) release(ctx context.Context, pod *corev1.Pod, final runtime.Pod, deleted bool) error {
	var errs []error
	if deleted {
		if err := s.cfg.Runtime.Remove(ctx, final); errors.Is(err, runtime.ErrNotRemoved) {
			s.reportLeft(ctx, pod, err)
		} else if err != nil {
			errs = append(errs, fmt.Errorf("remove containers: %w", err))
		}
	}
	errs = append(errs, s.releaseResources(ctx, pod.UID))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.removeDirs(ctx, pod, final, deleted)
}

// reportLeft emits the event of a sandbox that is left behind: see RT-22.
func (s *Syncer) reportLeft(ctx context.Context, pod *corev1.Pod, err error) {
	err = fmt.Errorf("remove containers: %w", err)
	if s.emitOnce(ctx, pod, s.state(pod.UID), reasonKill, err) {
		s.cfg.Logger.Warn("exited containers left to garbage collection", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
	}
}

// releaseResources releases what can be found by the UID of the pod alone.
func (s *Syncer) releaseResources(ctx context.Context, uid types.UID) error {
	var errs []error
	if s.cfg.Volumes != nil {
		if err := s.cfg.Volumes.Unmount(ctx, uid); err != nil {
			errs = append(errs, fmt.Errorf("unmount volumes: %w", err))
		}
	}
	if s.cfg.Cgroups != nil {
		if err := s.cfg.Cgroups.Remove(ctx, uid); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	errs = append(errs, s.releaseInjections(ctx, uid))
	return errors.Join(errs...)
}

func (s *Syncer) removeDirs(ctx context.Context, pod *corev1.Pod, final runtime.Pod, logsToo bool) error {
	if err := s.removeDir(ctx, pod.UID); err != nil {
		return err
	}
	if !logsToo {
		return nil
	}
	dir, err := logDir(s.cfg.LogsDir, pod)
	if err != nil {
		return err
	}
	if err := s.removeLogDir(ctx, dir, final); err != nil {
		return fmt.Errorf("remove log directory: %w", err)
	}
	return nil
}

// removeDir removes the directory of the pod, and then frees the id range that is
// recorded in it.
func (s *Syncer) removeDir(ctx context.Context, uid types.UID) error {
	dir, err := podDir(s.cfg.PodsDir, uid)
	if err != nil {
		return err
	}
	if err := mounts.Remove(ctx, filepath.Dir(dir), filepath.Base(dir)); err != nil {
		return fmt.Errorf("remove pod directory: %w", err)
	}
	if s.cfg.UserNamespaces != nil {
		s.cfg.UserNamespaces.Release(uid)
	}
	return nil
}

func runningNames(p runtime.Pod) string {
	var names []string
	for i := range p.Containers {
		if c := &p.Containers[i]; c.State == runtime.Running || c.State == runtime.Unknown {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}
