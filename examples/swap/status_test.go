package swap_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// countingStatuses counts the reports that another StatusManager gets.
type countingStatuses struct {
	agent.StatusManager
	reports *counter
}

func (s countingStatuses) Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus {
	s.reports.add()
	return s.StatusManager.Observe(pod, r)
}

func Example_statusManagerDecorated() {
	var reports counter
	runPod(agent.WithStatusManager(func(c *agent.Components) (agent.StatusManager, error) {
		s, err := agent.NewStatusManager(c)
		return countingStatuses{s, &reports}, err
	}))
	fmt.Println("reports counted:", reports.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// reports counted: true
}

// memoryStatuses generates statuses as the agent does, and keeps them in memory. It sends
// them nowhere, and forgets them at once.
type memoryStatuses struct {
	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
}

func (s *memoryStatuses) set(pod *corev1.Pod, generate func(previous corev1.PodStatus) corev1.PodStatus) corev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var previous corev1.PodStatus
	if p := s.pods[pod.UID]; p != nil {
		previous = p.Status
	}
	stored := *pod
	stored.Status = generate(previous)
	s.pods[pod.UID] = &stored
	return stored.Status
}

func (s *memoryStatuses) Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus {
	return s.set(pod, func(previous corev1.PodStatus) corev1.PodStatus {
		return status.Generate(pod, r, previous, status.NodeInfo{}, time.Now())
	})
}

func (s *memoryStatuses) Reject(pod *corev1.Pod, reason, message string) corev1.PodStatus {
	return s.set(pod, func(corev1.PodStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: message}
	})
}

func (s *memoryStatuses) Get(uid types.UID) (corev1.PodStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		return p.Status, true
	}
	return corev1.PodStatus{}, false
}

func (s *memoryStatuses) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

func (s *memoryStatuses) Pods() (pods []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		pods = append(pods, p)
	}
	return pods
}

func (s *memoryStatuses) PodUIDs() (uids []types.UID) {
	for _, p := range s.Pods() {
		uids = append(uids, p.UID)
	}
	return uids
}

func (s *memoryStatuses) Restore(...*corev1.Pod)    {} // a pod that was reported before is reported as a new one
func (s *memoryStatuses) IsRestored(types.UID) bool { return false }
func (s *memoryStatuses) Resend(types.UID)          {} // nothing is sent

func (s *memoryStatuses) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func Example_statusManagerOwn() {
	runPod(agent.WithStatusManager(func(*agent.Components) (agent.StatusManager, error) {
		return &memoryStatuses{pods: map[types.UID]*corev1.Pod{}}, nil
	}))
	// Output:
	// the pod runs
	// the pod is gone
}
