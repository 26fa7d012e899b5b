package podsync

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
)

// ErrStillRunning is why a termination has to be tried again: the runtime said
// that the pod was stopped, and an inspection found that it was not.
var ErrStillRunning = errors.New("containers still run")

// Terminate ends the pod's containers within e.Grace and records how they ended.
// It blocks until they have ended or ctx is done; a shorter grace is asked for by
// cancelling ctx and calling again. Success means that nothing of the pod runs.
//
// A pod without containers in its spec is an orphan, known from the runtime
// alone: nobody waits for its status, so all that is left of it is removed.
func (s *Syncer) Terminate(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, e runtime.Termination) error {
	orphan := len(pod.Spec.Containers) == 0
	st := s.state(pod.UID)
	defer st.begin()()
	if !orphan {
		s.cfg.Statuses.Observe(pod, runtime.Report{Observed: seen, Failures: st.failures, Probes: s.probeResults(pod.UID), Termination: &e})
	}
	if s.cfg.Probes != nil {
		s.cfg.Probes.StopLivenessAndStartup(pod.UID)
	}
	if err := s.cfg.Runtime.Kill(ctx, pod, seen, e); err != nil {
		s.emitOnce(ctx, pod, st, "FailedKillPod", err)
		return fmt.Errorf("kill pod: %w", err)
	}
	// An inspection that began in this same instant may have missed the stop.
	s.cfg.PodCache.RequestInspection(pod.UID)
	final, err := s.cfg.PodCache.GetNewerThan(ctx, pod.UID, time.Now())
	if err != nil {
		return fmt.Errorf("look at the killed pod: %w", err)
	}
	if final.CouldHaveRunningContainers() {
		return fmt.Errorf("kill pod: %w: %s", ErrStillRunning, runningNames(final))
	}
	st.final = &final
	if orphan {
		return s.removeAll(ctx, pod, final)
	}
	s.cfg.Statuses.Observe(pod, runtime.Report{Observed: final, Failures: st.failures, Probes: s.probeResults(pod.UID), Termination: &e})
	if s.cfg.Probes != nil {
		s.cfg.Probes.RemovePod(pod.UID)
	}
	return nil
}

// Finish gives back what the pod held: volumes, cgroup and folder, and for a pod
// that is deleted its dead containers, sandboxes and logs too. The last status
// goes out when all of it is done.
func (s *Syncer) Finish(ctx context.Context, pod *corev1.Pod, e runtime.Termination) error {
	st := s.state(pod.UID)
	defer st.begin()()
	if st.final == nil { // a new process took up the pod here
		seen, err := s.cfg.PodCache.GetNewerThan(ctx, pod.UID, time.Time{})
		if err != nil {
			return fmt.Errorf("look at the ended pod: %w", err)
		}
		st.final = &seen
	}
	if err := s.release(ctx, pod, *st.final, e.Deleted); err != nil {
		s.emitOnce(ctx, pod, st, "FailedCleanup", err)
		return err
	}
	s.cfg.Statuses.Observe(pod, runtime.Report{Observed: *st.final, Termination: &e, Finished: true})
	s.forget(pod.UID)
	return nil
}

// removeAll removes all that an orphan left.
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

// release takes the steps of giving back. It goes on where one fails, so that
// one stuck mount does not keep a cgroup, and joins the errors; the pod's folder
// goes last, and only when nothing is mounted in it.
func (s *Syncer) release(ctx context.Context, pod *corev1.Pod, final runtime.Pod, deleted bool) error {
	var errs []error
	if deleted {
		if err := s.cfg.Runtime.Remove(ctx, final); err != nil {
			errs = append(errs, fmt.Errorf("remove containers: %w", err))
		}
	}
	errs = append(errs, s.releaseResources(ctx, pod.UID))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.removeDirs(ctx, pod, final, deleted)
}

// releaseResources takes away what is known by the pod's UID alone.
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
	return errors.Join(errs...)
}

func (s *Syncer) removeDirs(ctx context.Context, pod *corev1.Pod, final runtime.Pod, logsToo bool) error {
	if err := s.removeDir(ctx, pod.UID); err != nil {
		return err
	}
	if !logsToo {
		return nil
	}
	logs, err := logDir(s.cfg.LogsDir, pod)
	if err != nil {
		return err
	}
	ours, err := s.mayRemoveLogs(logs, final)
	if err == nil && ours {
		err = removeLogs(ctx, logs)
	}
	if err != nil {
		return fmt.Errorf("remove log folder: %w", err)
	}
	return nil
}

// removeDir removes the pod's own folder, and gives back the ids that stood in it.
func (s *Syncer) removeDir(ctx context.Context, uid types.UID) error {
	dir, err := podDir(s.cfg.PodsDir, uid)
	if err != nil {
		return err
	}
	if err := mounts.Remove(ctx, filepath.Dir(dir), filepath.Base(dir)); err != nil {
		return fmt.Errorf("remove pod folder: %w", err)
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

// ListPodsFromDisk returns the UIDs of the pods that have a folder. It reads the disk.
func (s *Syncer) ListPodsFromDisk() ([]types.UID, error) {
	entries, err := os.ReadDir(s.cfg.PodsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for pod folders: %w", err)
	}
	uids := make([]types.UID, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// CleanupOrphan gives back what a former process left of a pod of which nothing is
// known any more but its UID: volumes, cgroup and folder.
func (s *Syncer) CleanupOrphan(ctx context.Context, uid types.UID) error {
	if _, err := podDir(s.cfg.PodsDir, uid); err != nil {
		return err
	}
	if err := s.releaseResources(ctx, uid); err != nil {
		return err
	}
	if err := s.removeDir(ctx, uid); err != nil {
		return err
	}
	s.forget(uid)
	return nil
}
