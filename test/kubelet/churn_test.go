//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent/internal/kubetest"
)

// containerMarker is in the environment of every container.
const containerMarker = "SUBLET_KUBELET_CHURN=yes"

// statusTimeout bounds each wait for a status. It is generous: a busy machine is slow, and the
// kubelet backs off.
const statusTimeout = 3 * time.Minute

// churn makes and removes pods.
type churn struct {
	t      *testing.T
	client kubernetes.Interface
	config *rest.Config
	image  string

	mu     sync.Mutex // guards the rest
	next   int
	passed map[string]int
	wrong  []string
}

func newChurn(t *testing.T, cluster *kubetest.APIServer, r *runtimeUnderTest) *churn {
	t.Helper()
	c := &churn{t: t, client: cluster.Admin(), config: cluster.Config("admin", "system:masters"), image: r.image, passed: map[string]int{}}
	require.Eventually(t, func() bool { // without it pods are rejected
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	_, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "blue"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c
}

// run makes pods of all kinds in turn, each worker one at a time, until the period is over.
func (c *churn) run(workers int, period time.Duration) {
	end := time.Now().Add(period)
	kinds := podKinds()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for time.Now().Before(end) {
				c.mu.Lock()
				n := c.next
				c.next++
				c.mu.Unlock()
				kind := kinds[n%len(kinds)]
				err := c.live(kind, n)
				c.mu.Lock()
				if err != nil {
					c.wrong = append(c.wrong, fmt.Sprintf("%s (pod %d): %v", kind.name, n, err))
				} else {
					c.passed[kind.name]++
				}
				c.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// live is the life of one pod, from its creation to its end in the API.
func (c *churn) live(kind podKind, n int) (err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 4*statusTimeout)
	defer cancel()
	pods := c.client.CoreV1().Pods("default")
	pod := kind.pod(n)
	pod.Name, pod.Namespace = strings.ToLower(fmt.Sprintf("%s-%d", strings.ReplaceAll(kind.name, " ", "-"), n)), "default"
	pod.Spec.NodeName = nodeName
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			name, value, _ := strings.Cut(containerMarker, "=")
			list[i].Env = append(list[i].Env, corev1.EnvVar{Name: name, Value: value})
			list[i].Image, list[i].ImagePullPolicy = c.image, corev1.PullIfNotPresent
		}
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx, pod.Name)) }()
	p := &livePod{c: c, name: pod.Name}
	return kind.live(ctx, p)
}

// remove deletes a pod as its user would, and waits for its end.
func (c *churn) remove(ctx context.Context, name string) error {
	pods := c.client.CoreV1().Pods("default")
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return poll(ctx, "the pod is gone", func() (string, error) {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("%s, deleted at %v", describe(p), p.DeletionTimestamp), err
	})
}

// removeAll deletes the pods that failed lives have left.
func (c *churn) removeAll() {
	list, err := c.client.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	for _, p := range list.Items {
		require.NoError(c.t, c.remove(c.t.Context(), p.Name))
	}
}

func (c *churn) failures() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wrong)
}

// report has a line for each kind of pod.
func (c *churn) report() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	all := 0
	for _, name := range slices.Sorted(maps.Keys(c.passed)) {
		fmt.Fprintf(&b, "%-34s %5d\n", name, c.passed[name])
		all += c.passed[name]
	}
	fmt.Fprintf(&b, "%-34s %5d\n%-34s %5d\n", "pods with right statuses", all, "pods with wrong ones", len(c.wrong))
	for _, w := range c.wrong {
		fmt.Fprintln(&b, "  "+w)
	}
	return b.String()
}

// poll waits until status returns "", which is why it is not there yet.
func poll(ctx context.Context, what string, status func() (string, error)) error {
	deadline := time.Now().Add(statusTimeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		why, err := status()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if why == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %s; the pod is %s", what, statusTimeout, why)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; the pod is %s", what, ctx.Err(), why)
		case <-tick.C:
		}
	}
}

// describe returns the status of a pod in one line.
func describe(p *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", p.Status.Phase, p.Status.Reason)
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range list {
			fmt.Fprintf(&b, "; %s ready=%t restarts=%d", s.Name, s.Ready, s.RestartCount)
			switch {
			case s.State.Waiting != nil:
				fmt.Fprintf(&b, " waiting %s %s", s.State.Waiting.Reason, s.State.Waiting.Message)
			case s.State.Running != nil:
				b.WriteString(" running")
			case s.State.Terminated != nil:
				t := s.State.Terminated
				fmt.Fprintf(&b, " terminated %d %s %q", t.ExitCode, t.Reason, t.Message)
			}
			if t := s.LastTerminationState.Terminated; t != nil {
				fmt.Fprintf(&b, " (before: %d %s %q)", t.ExitCode, t.Reason, t.Message)
			}
		}
	}
	return b.String()
}
