package podsync

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// A container that a sync stops to start it once more, as for a failed probe, has not completed, although it may exit with 0. Under
// the policy OnFailure it would count as completed if the start were left to another sync, because it failed, or to another
// process, which has no results of probes. Such containers are therefore recorded before they are stopped.

// stopsFile is the file in the directory of a pod with its podState.stops, if it has had any.
const stopsFile = "stops"

// stopSlack is how much later than at the end of its grace period a container may exit that was stopped: runtimes can be slow.
const stopSlack = 30 * time.Second

// restartsOnFailureOnly reports whether the exit code 0 says that the container has completed, and any other starts it once more.
func restartsOnFailureOnly(pod *corev1.Pod, c *corev1.Container) bool {
	return podspec.RestartsByPolicy(pod, c, true) && !podspec.RestartsByPolicy(pod, c, false)
}

// recordStops records the containers that are about to be stopped, and until when they exit because of that. That it cannot be stored
// does not keep the pod from its sync.
func (s *Syncer) recordStops(pod *corev1.Pod, st *podState, observed *runtime.Pod, dir string, work []runtime.Action) {
	var stops map[string]time.Time
	for _, a := range work {
		c := runtime.ContainerSpec(pod, a.Container)
		if a.Type != runtime.KillContainer || a.ContainerType != runtime.Regular || c == nil || !restartsOnFailureOnly(pod, c) {
			continue
		}
		if stops == nil {
			stops = map[string]time.Time{}
		}
		stops[a.ID] = time.Now().Add(a.GracePeriod + stopSlack)
	}
	if stops == nil {
		return
	}
	for i := range observed.Containers {
		c := &observed.Containers[i]
		if until, ok := st.stops[c.ID]; ok && c.State == runtime.Exited {
			stops[c.ID] = until
		}
	}
	st.stops = stops
	text, err := json.Marshal(stops)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, stopsFile), text)
	}
	if err != nil {
		s.cfg.Logger.Warn("stopped containers not stored", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
	}
}

// restoreStops reads what an earlier process has recorded.
func (s *Syncer) restoreStops(pod *corev1.Pod, st *podState, observed *runtime.Pod) {
	restarts := func(c corev1.Container) bool { return restartsOnFailureOnly(pod, &c) }
	if len(observed.Containers) == 0 || !slices.ContainsFunc(pod.Spec.Containers, restarts) {
		return
	}
	dir, err := podDir(s.cfg.PodsDir, pod.UID)
	if err == nil {
		var text []byte
		if text, err = os.ReadFile(filepath.Join(dir, stopsFile)); err == nil { //nolint:gosec // podDir has checked the UID
			err = json.Unmarshal(text, &st.stops)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Logger.Warn("stopped containers not restored", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
	}
}

// withStops returns the results of probes, in which the containers that have exited because they were stopped have failed.
func (st *podState) withStops(results runtime.PodProbeResults, observed *runtime.Pod) runtime.PodProbeResults {
	if len(st.stops) == 0 {
		return results
	}
	all := runtime.PodProbeResults{}
	maps.Copy(all, results)
	for i := range observed.Containers {
		c := &observed.Containers[i]
		if until, ok := st.stops[c.ID]; ok && c.State == runtime.Exited && c.Finished.Before(until) {
			r := all[c.ID]
			r.Liveness = runtime.ProbeFailure
			all[c.ID] = r
		}
	}
	return all
}
