package status_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// waits has the manager see a pod that waits for a reason. Nothing else of its
// status changes with it, so that it can be what it was before.
func waits(m *status.Manager, p *corev1.Pod, reason string) {
	m.Observe(p, runtime.Report{Observed: view(), Failures: map[string]runtime.Failure{"c": {Reason: reason}}})
}

// storingSink is a sink that records its last status and the sends that led to it.
type storingSink struct {
	took time.Duration
	fate func() (received bool, err error)

	mu         sync.Mutex // guards what follows
	stored     string
	sure       bool     // the manager knows that it holds that
	duplicates []string // what it received although it had it for sure
	received   []string
	expected   bool // a duplicate is expected, since the last send
	expectedAt time.Time
}

func (h *storingSink) SetStatus(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
	reason := "ended"
	if w := st.ContainerStatuses[0].State.Waiting; w != nil {
		reason = w.Reason
	}
	h.mu.Lock()
	if h.sure && h.stored == reason && !h.expected {
		h.duplicates = append(h.duplicates, reason)
	}
	if time.Now().After(h.expectedAt) { // else this send may have been on its way before
		h.expected = false
	}
	h.mu.Unlock()
	time.Sleep(h.took)
	received, err := true, error(nil)
	if h.fate != nil {
		received, err = h.fate()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if received {
		h.stored = reason
		h.received = append(h.received, reason)
	}
	h.sure = err == nil
	return err
}

func (h *storingSink) DeleteStatus(context.Context, *corev1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stored, h.sure = "", false
	return nil
}

// expectResent makes the sink accept one more send of the same status.
func (h *storingSink) expectResent() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expected, h.expectedAt = true, time.Now()
}

// ST-6: a status that changes and changes back before it is sent is not sent
// again, except after Resend or when the last send has an unknown result.
func TestManager_ResendsValueThatChangedBack(t *testing.T) {
	lost := errors.New("the answer was lost")
	for _, tt := range []struct {
		name string
		fate []error // of the sends, as heard as they are; then none
		do   func(m *status.Manager, p *corev1.Pod)
		want []string
	}{
		{"while another is sent", nil, func(m *status.Manager, p *corev1.Pod) {
			waits(m, p, "B")
			waits(m, p, "A")
		}, []string{"A"}},
		{"and forth", nil, func(m *status.Manager, p *corev1.Pod) {
			waits(m, p, "B")
			waits(m, p, "A")
			waits(m, p, "B")
		}, []string{"A", "B"}},
		{"but the sink is to hear it again", nil, func(m *status.Manager, p *corev1.Pod) {
			m.Resend(p.UID)
			waits(m, p, "B")
			waits(m, p, "A")
		}, []string{"A", "A"}},
		{"and then the sink is to hear it again", nil, func(m *status.Manager, p *corev1.Pod) {
			waits(m, p, "B")
			waits(m, p, "A")
			m.Resend(p.UID)
		}, []string{"A", "A"}},
		{"after one that failed but came through", []error{nil, lost}, func(m *status.Manager, p *corev1.Pod) {
			pause(time.Second)
			waits(m, p, "B")
			pause(1100 * time.Millisecond) // it waits to try again
			waits(m, p, "A")
		}, []string{"A", "B", "A"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &storingSink{took: time.Second, fate: func() (bool, error) {
					if len(tt.fate) == 0 {
						return true, nil
					}
					err := tt.fate[0]
					tt.fate = tt.fate[1:]
					return true, err
				}}
				sent := 0
				m, stop := start(t, status.Config{Sinks: []status.Sink{h}, Hooks: status.Hooks{
					Sent: func(*corev1.Pod, time.Duration, time.Duration, error) { sent++ },
				}})
				p := pod("main:c")
				waits(m, p, "A")
				synctest.Wait() // it is being sent
				tt.do(m, p)
				pause(time.Minute)
				assert.Equal(t, tt.want, h.received)
				require.NoError(t, stop())
				assert.Equal(t, len(tt.want), sent, "what is not told is not counted")
			})
		})
	}
}

// ST-6, ST-7: whatever changes, fails, is lost or is to be heard again, and when: no
// sink receives the status that it is known to have, and each ends up with the newest.
func TestManager_SendsUnchangedStatusOnce(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 6))
				fates := rand.New(rand.NewPCG(seed, 7)) // the sink's own goroutines use it
				troubled := &storingSink{took: time.Duration(rnd.IntN(300)) * time.Millisecond, fate: func() (bool, error) {
					switch fates.IntN(6) {
					case 0:
						return false, errors.New("refused")
					case 1:
						return true, errors.New("the answer was lost")
					}
					return true, nil
				}}
				slow := &storingSink{took: time.Duration(1+rnd.IntN(1000)) * time.Millisecond}
				m, stop := start(t, status.Config{Sinks: []status.Sink{troubled, slow}})
				p, last := pod("main:c"), ""
				for range 60 {
					switch rnd.IntN(12) {
					case 0:
						troubled.expectResent()
						slow.expectResent()
						m.Resend(p.UID)
					case 1:
						m.Observe(p, runtime.Report{Observed: view(), Finished: true})
						m.Forget(p.UID)
						if rnd.IntN(2) == 0 {
							pause(time.Duration(rnd.IntN(2000)) * time.Millisecond)
						}
						troubled.expectResent() // a recreated pod is sent from the start
						slow.expectResent()
						fallthrough
					default:
						last = string("ABC"[rnd.IntN(3)])
						waits(m, p, last)
					}
					pause(time.Duration(rnd.IntN(400)) * time.Millisecond)
				}
				pause(time.Minute)
				for _, h := range []*storingSink{troubled, slow} {
					assert.Empty(t, h.duplicates)
					assert.Equal(t, last, h.stored)
				}
				require.NoError(t, stop())
			})
		})
	}
}
