package oomwatch_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/oomwatch"
	"github.com/sublet-dev/agent/runtime"
)

func TestNew_NeedsEachField(t *testing.T) {
	complete := oomwatch.Config{NodeName: "n", Pods: statuses{}, Runtime: node{}, Recorder: &kernel{}}
	_, err := oomwatch.New(complete)
	require.NoError(t, err, "the kernel's own log is the default")
	for name, omit := range map[string]func(c *oomwatch.Config){
		"NodeName": func(c *oomwatch.Config) { c.NodeName = "" }, "Pods": func(c *oomwatch.Config) { c.Pods = nil },
		"Runtime": func(c *oomwatch.Config) { c.Runtime = nil }, "Recorder": func(c *oomwatch.Config) { c.Recorder = nil },
	} {
		c := complete
		omit(&c)
		_, err := oomwatch.New(c)
		require.ErrorContains(t, err, "required", name)
	}
}

// The log of the agent says once that the kernel's cannot be read, and of each kill whose it was.
func TestWatcher_Logs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, log := &kernel{records: make(chan string)}, &logtest.Buffer{}
		open := func() (io.ReadCloser, error) { return k.open() }
		w, err := oomwatch.New(oomwatch.Config{
			NodeName: "n", Pods: statuses{}, Runtime: node{}, Recorder: k, Open: open, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		k.records <- record("CONSTRAINT_MEMCG", scope, "stress")
		for range 3 {
			k.records <- "" // broken
		}
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, 1, strings.Count(log.String(), "kernel log unavailable, kills for want of memory are not reported"), log.String())
		assert.Contains(t, log.String(), `err="permission denied"`)
		assert.Contains(t, log.String(), `msg="process killed for want of memory" process=stress pid=42 global=false cgroup=`+scope+" pod=ns/pod-u1 podUID=u1 containerName=main")
	})
}

// A node that kills all the time has no more events of its own than a container.
func TestWatcher_LimitsEventsOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, node{})
		for range 20 {
			k.records <- record("CONSTRAINT_NONE", "/system.slice/ssh.service", "sshd")
		}
		synctest.Wait()
		assert.Len(t, k.events, 5)
	})
}

// crowd is a node with very many pods.
type crowd struct {
	running []runtime.Pod
	pods    []*corev1.Pod
}

func newCrowd(size int) *crowd {
	c := &crowd{}
	for i := range size {
		uid := types.UID(fmt.Sprint("u", i))
		c.running = append(c.running, runtime.Pod{UID: uid, Containers: []runtime.Container{{ID: fmt.Sprint("c", i), Name: "main"}, {Name: "not yet created"}}})
		c.pods = append(c.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}})
	}
	return c
}

func (c *crowd) Pods(context.Context) ([]runtime.Pod, error) { return c.running, nil }

type crowdStatuses struct{ *crowd }

func (c crowdStatuses) Pods() []*corev1.Pod { return c.pods }

// What is remembered of pods for the limits is bounded: with a thousand of them all are forgotten.
func TestWatcher_RemembersAThousandPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := &kernel{records: make(chan string)}, newCrowd(1000)
		w, err := oomwatch.New(oomwatch.Config{NodeName: "n", Pods: crowdStatuses{c}, Runtime: c, Recorder: k, Open: k.open})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		kill := func(i, times int) {
			for range times {
				k.records <- record("CONSTRAINT_MEMCG", fmt.Sprintf("/kubepods//c%d", i), "x")
			}
			synctest.Wait()
		}
		kill(0, 6)
		assert.Len(t, k.events, 5)
		for i := 1; i < 999; i++ {
			kill(i, 1)
		}
		k.events = nil
		kill(0, 1)
		assert.Empty(t, k.events, "999 are remembered")
		kill(999, 1)
		kill(0, 1)
		assert.Len(t, k.events, 1, "a thousand too")
		k.records <- record("CONSTRAINT_MEMCG", "/other", "x") // in no pod: the next one
		kill(0, 1)
		assert.Len(t, k.events, 2, "now all of them are forgotten")
		time.Sleep(time.Second)
		cancel()
		require.NoError(t, <-done)
	})
}

// Only records of the kernel itself count, of any level.
func TestParse_Facility(t *testing.T) {
	const kill = ",1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/,task=a,pid=7,uid=0"
	for priority, want := range map[string]bool{"0": true, "7": true, "8": false, "-1": false, "": false, "x": false} {
		_, ok := oomwatch.Parse(priority + kill)
		assert.Equal(t, want, ok, priority)
	}
}

// A rejected record has nothing that could be used.
func TestParse_RejectedIsZero(t *testing.T) {
	for _, r := range []string{
		"", "6,1,2,-", "14,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/,task=a,pid=7,uid=0", "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/,pid=7,uid=0",
		"6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/,task=a,pid=99999999999,uid=0",
	} {
		k, ok := oomwatch.Parse(r)
		assert.False(t, ok, r)
		assert.Equal(t, oomwatch.Kill{}, k, r)
	}
}
