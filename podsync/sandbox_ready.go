package podsync

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// observeSandbox adds a sandbox to a report that was made without it, and has the status say so. The
// next inspection would be reported after the sync, which may wait for an image for long.
func (s *Syncer) observeSandbox(pod *corev1.Pod, report *runtime.Report, made runtime.Sandbox) {
	if report.Observed.CouldHaveRunningContainers() {
		return // they are those of another sandbox, and the report has not seen their end
	}
	sandboxes := []runtime.Sandbox{made}
	for _, old := range report.Observed.Sandboxes {
		old.State = runtime.SandboxNotReady // the plan has stopped it
		sandboxes = append(sandboxes, old)
	}
	report.Observed.Sandboxes = sandboxes
	report.Failures = maps.Clone(report.Failures)
	delete(report.Failures, "") // what kept the pod from a sandbox
	s.cfg.Statuses.Observe(pod, *report)
}
