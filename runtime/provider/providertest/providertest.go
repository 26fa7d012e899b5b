// Package providertest tests a provider as an agent uses it.
//
//	func TestProvider(t *testing.T) {
//		providertest.TestProvider(t, newMyProvider(), &corev1.Pod{Spec: corev1.PodSpec{Containers: ...}})
//	}
package providertest

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/provider"
)

// timeout bounds each step: creation, update, end.
const timeout = 5 * time.Minute

// registrationTimeout is how long a provider that blocks in NotifyPods has to set the function.
const registrationTimeout = time.Second

// TestProvider creates pods made from template, which must run until they are deleted, and
// requires what provider.Provider promises of each method that the provider has. It leaves
// no pod behind, and touches no others: its pods have names of their own, in the namespace
// sublet-test.
func TestProvider(t *testing.T, p provider.Provider, template *corev1.Pod) {
	t.Helper()
	s := &suite{Provider: p, template: template, id: rand.Uint32()}
	t.Run("reports a created pod by its UID, namespace and name", s.created)
	t.Run("has several pods", s.several)
	t.Run("accepts to delete a missing pod", func(t *testing.T) { s.delete(t, s.pod("missing")) })
	if u, ok := p.(provider.PodUpdater); ok {
		t.Run("keeps an updated pod running", func(t *testing.T) { s.updated(t, u) })
	}
	if g, ok := p.(provider.PodGetter); ok {
		t.Run("finds one pod", func(t *testing.T) { s.found(t, g) })
	}
	if n, ok := p.(provider.PodNotifier); ok {
		t.Run("notifies of the end of a pod", func(t *testing.T) { s.notifies(t, n) })
	}
}

type suite struct {
	provider.Provider
	template *corev1.Pod
	id       uint32 // of this run: several may share a provider
}

// pod returns a pod of the template with a name and a UID of its own, in the form of a UUID.
func (s *suite) pod(name string) *corev1.Pod {
	pod := s.template.DeepCopy()
	pod.Namespace, pod.Name = "sublet-test", fmt.Sprintf("providertest-%08x-%s", s.id, name)
	pod.UID = types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", s.id, crc32.ChecksumIEEE([]byte(name))))
	podspec.Default(pod)
	return pod
}

// create creates a pod and waits until it runs. It is deleted at the end of the test.
func (s *suite) create(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod := s.pod(name)
	t.Cleanup(func() { s.delete(t, pod) }) // a creation that failed may have left something
	if err := s.CreatePod(t.Context(), pod.DeepCopy()); err != nil {
		t.Fatalf("create pod: %v", err)
	}
	s.runs(t, pod)
	return pod
}

// runs waits until a pod runs, and ends the test if it does not.
func (s *suite) runs(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	err := await("pod "+pod.Name+" does not run", func() (bool, error) {
		reported, err := s.reported(t, pod)
		if reported == nil || err != nil {
			return false, err
		}
		if st := reported.Status; podspec.IsTerminalPhase(st.Phase) {
			return false, fmt.Errorf("pod %s is %s (%s: %s); pods of the template must run until they are deleted", pod.Name, st.Phase, st.Reason, st.Message)
		}
		return reported.Status.Phase == corev1.PodRunning, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// delete deletes a pod and waits until it has ended.
func (s *suite) delete(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	defer cancel()
	deleted := pod.DeepCopy()
	deleted.DeletionGracePeriodSeconds = new(int64(1))
	for range 2 { // the second call removes a pod that is reported as ended
		if err := s.DeletePod(ctx, deleted.DeepCopy()); err != nil && !provider.IsNotFound(err) {
			t.Errorf("delete pod: %v; want nil or an error that wraps runtime.ErrNotFound", err)
			return
		}
		err := await("pod "+pod.Name+" does not end", func() (bool, error) {
			reported, err := s.reported(t, pod)
			return reported == nil || podspec.IsTerminalPhase(reported.Status.Phase), err
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// reported returns the pod as GetPods returns it, or nil.
func (s *suite) reported(t *testing.T, pod *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	defer cancel()
	pods, err := s.GetPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("get pods: %w", err)
	}
	for _, reported := range pods {
		if reported == nil {
			continue
		}
		if reported.UID == pod.UID {
			return reported, nil
		}
		if reported.Namespace == pod.Namespace && reported.Name == pod.Name {
			return nil, fmt.Errorf("pod %s has UID %q, want %q: an agent finds its pods by their UIDs", pod.Name, reported.UID, pod.UID)
		}
	}
	return nil, nil
}

func (s *suite) created(t *testing.T) {
	pod := s.create(t, "created")
	reported, err := s.reported(t, pod)
	if err != nil {
		t.Fatal(err)
	}
	if reported == nil || reported.Namespace != pod.Namespace || reported.Name != pod.Name {
		t.Errorf("got %v, want a pod %s/%s: an agent finds its pods by them after a restart", reported, pod.Namespace, pod.Name)
	}
}

func (s *suite) several(t *testing.T) {
	pods := []*corev1.Pod{s.create(t, "first"), s.create(t, "second")}
	for _, pod := range pods {
		if reported, err := s.reported(t, pod); reported == nil || err != nil {
			t.Errorf("of two pods, %s is not reported any more: %v", pod.Name, err)
		}
	}
}

func (s *suite) updated(t *testing.T, u provider.PodUpdater) {
	pod := s.create(t, "updated")
	pod.Labels = map[string]string{"providertest": "updated"}
	if err := u.UpdatePod(t.Context(), pod.DeepCopy()); err != nil {
		t.Fatalf("update pod: %v", err)
	}
	s.runs(t, pod)
}

func (s *suite) found(t *testing.T, g provider.PodGetter) {
	pod := s.create(t, "found")
	if found, err := g.GetPod(t.Context(), pod.Namespace, pod.Name); err != nil || found == nil || found.UID != pod.UID {
		t.Errorf("get pod: got %v, %v, want the pod", found, err)
	}
	if found, err := g.GetPod(t.Context(), pod.Namespace, s.pod("missing").Name); found != nil || err != nil && !provider.IsNotFound(err) {
		t.Errorf("get missing pod: got %v, %v, want nil or an error that wraps %v", found, err, runtime.ErrNotFound)
	}
}

func (s *suite) notifies(t *testing.T, n provider.PodNotifier) {
	var deleted atomic.Bool
	ended, returned := make(chan struct{}, 1), make(chan struct{})
	uid := s.pod("notified").UID
	go func() { // a provider may block in it until the context is done
		defer close(returned)
		n.NotifyPods(t.Context(), func(pod *corev1.Pod) {
			if pod == nil || pod.UID != uid || !deleted.Load() {
				return
			}
			select {
			case ended <- struct{}{}:
			default:
			}
		})
	}()
	timer := time.NewTimer(registrationTimeout)
	defer timer.Stop()
	select {
	case <-returned:
	case <-timer.C:
	}
	pod := s.create(t, "notified")
	deleted.Store(true)
	s.delete(t, pod)
	timer.Reset(timeout)
	select {
	case <-ended:
	case <-timer.C:
		t.Fatal("no notification of the end of a pod")
	}
}

// await polls until done. The error is that of done, or the problem after the timeout.
func await(problem string, done func() (bool, error)) error {
	for until := time.Now().Add(timeout); ; {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s within %v", problem, timeout)
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
}
