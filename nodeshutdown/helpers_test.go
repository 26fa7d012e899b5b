package nodeshutdown_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/runtime"
)

// machine is a login manager, the pods of a node and their events. What happens is written down with the time since its start.
type machine struct {
	start time.Time

	mu        sync.Mutex
	trace     []string
	changes   chan bool // of the current connection
	down      bool
	locks     int
	dialErr   error
	lockErr   error
	shortErr  error // returned with a lock
	connected int
	pods      []*corev1.Pod
	exitAfter map[types.UID]time.Duration // of its SIGTERM; without one a pod exits when its grace period ends
	exited    map[types.UID]bool
}

func newMachine(pods ...*corev1.Pod) *machine {
	return &machine{start: time.Now(), pods: pods, exitAfter: map[types.UID]time.Duration{}, exited: map[types.UID]bool{}}
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace = append(m.trace, fmt.Sprintf("%v ", time.Since(m.start))+fmt.Sprintf(format, args...))
}

// dial implements nodeshutdown.Config.Dial.
func (m *machine) dial(context.Context) (nodeshutdown.Login, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dialErr != nil {
		return nil, m.dialErr
	}
	m.connected++
	m.changes = make(chan bool, 10)
	m.changes <- m.down
	return &connection{machine: m, changes: m.changes}, nil
}

// set begins or cancels a shutdown.
func (m *machine) set(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
	m.changes <- down
}

type connection struct {
	*machine
	changes chan bool
}

func (c *connection) Shutdowns() <-chan bool { return c.changes }
func (c *connection) Close() error           { return nil }

func (c *connection) Inhibit(_ context.Context, period time.Duration) (io.Closer, error) {
	if c.lockErr != nil {
		return nil, c.lockErr
	}
	c.note("locked for %v", period)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locks++
	return c.machine, c.shortErr
}

// setLimit says why the locks from now on are too short, or that they are not.
func (m *machine) setLimit(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shortErr = err
}

// Close releases the lock.
func (m *machine) Close() error {
	m.note("released")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks == 0 {
		return errors.New("released twice")
	}
	m.locks--
	return nil
}

// ActivePods implements nodeshutdown.Pods.
func (m *machine) ActivePods() (active []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range m.pods {
		if !m.exited[pod.UID] {
			active = append(active, pod)
		}
	}
	return active
}

// Evict implements nodeshutdown.Pods.
func (m *machine) Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	m.note("%s: %s in %v", pod.Name, t.Reason, t.GracePeriod)
	after, ok := m.exitAfter[pod.UID]
	if !ok {
		after = t.GracePeriod
	}
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	m.exited[pod.UID] = true
	m.mu.Unlock()
	m.note("%s exited", pod.Name)
	return nil
}

// Record implements nodeshutdown.Recorder.
func (m *machine) Record(e *corev1.Event) {
	m.note("event %s %s: %s", e.InvolvedObject.Kind, e.Reason, e.Message)
}

// logger has warnings written down.
func (m *machine) logger() *slog.Logger {
	return logtest.NewLogger(logWriter{m}, slog.LevelWarn)
}

type logWriter struct{ *machine }

func (w logWriter) Write(line []byte) (int, error) {
	w.note("%s", strings.TrimSpace(string(line)))
	return len(line), nil
}

// requireTrace compares what has happened, of which things at the same time are in any order.
func (m *machine) requireTrace(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	require.ElementsMatch(t, want, m.trace)
	m.trace = nil
}

func newPod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
}
