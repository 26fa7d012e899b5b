package oomwatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/oomwatch"
	"github.com/sublet-dev/agent/runtime"
)

const (
	id     = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	victim = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	scope  = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice/cri-containerd-" + id + ".scope"
)

// record is one of the kernel about a process in a cgroup.
func record(constraint, cgroup, process string) string {
	return fmt.Sprintf("6,1234,5678,-;oom-kill:constraint=%s,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods.slice,task_memcg=%s,task=%s,pid=42,uid=1000\n SUBSYSTEM=x\n", constraint, cgroup, process)
}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		record string
		want   *oomwatch.Kill
	}{
		"a cgroup's":                        {record("CONSTRAINT_MEMCG", scope, "stress"), &oomwatch.Kill{Process: "stress", PID: 42, Cgroup: scope}},
		"the node's":                        {"4,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=sshd,pid=7,uid=0\n", &oomwatch.Kill{Process: "sshd", PID: 7, Cgroup: "/", Global: true}},
		"of a process":                      {strings.Replace(record("CONSTRAINT_MEMCG", scope, "x"), "6,", "14,", 1), nil},
		"no priority":                       {strings.TrimPrefix(record("CONSTRAINT_MEMCG", scope, "x"), "6"), nil},
		"of another":                        {"6,1,2,-;Out of memory: Killed process 7 (sshd) total-vm:1kB\n", nil},
		"cut off":                           {strings.Split(record("CONSTRAINT_MEMCG", scope, "x"), ",uid=")[0], nil},
		"no task":                           {"6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,pid=7,uid=0", nil},
		"no message":                        {"6,1,2,-", nil},
		"large pid":                         {strings.Replace(record("CONSTRAINT_MEMCG", scope, "x"), "=42,", "=99999999999,", 1), nil},
		"process named like a field":        {record("CONSTRAINT_MEMCG", scope, "a,task=b"), &oomwatch.Kill{Process: "a,task=b", PID: 42, Cgroup: scope}},
		"process named like the end":        {record("CONSTRAINT_MEMCG", scope, "a,pid=1,uid=0"), &oomwatch.Kill{Process: "a,pid=1,uid=0", PID: 42, Cgroup: scope}},
		"process with unprintable bytes":    {record("CONSTRAINT_MEMCG", scope, "\x1b[31m\u202e\xff"), &oomwatch.Kill{Process: "?[31m??", PID: 42, Cgroup: scope}},
		"process whose name is escaped":     {record("CONSTRAINT_MEMCG", scope, strings.Repeat("\\x01", 15)), &oomwatch.Kill{Process: strings.Repeat("\\x01", 15), PID: 42, Cgroup: scope}},
		"cgroup named like a field":         {record("CONSTRAINT_MEMCG", scope+"/x,task_memcg=/kubepods/"+victim, "a"), &oomwatch.Kill{Process: "a", PID: 42}},
		"earlier cgroup named like a field": {strings.Replace(record("CONSTRAINT_MEMCG", scope, "a"), "cpuset=c", "cpuset=c,task_memcg=/kubepods/"+victim, 1), &oomwatch.Kill{Process: "a", PID: 42}},
		"cgroup named like a process":       {record("CONSTRAINT_MEMCG", scope+"/x,task=init,pid=1,uid=0 and long", "a"), &oomwatch.Kill{Process: "a", PID: 42, Cgroup: scope + "/x,task=init,pid=1,uid=0 and long"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := oomwatch.Parse(tc.record)
			require.Equal(t, tc.want != nil, ok)
			if ok {
				assert.Equal(t, *tc.want, got)
			}
		})
	}
}

// OM-2: whatever a container chooses, its own cgroup is the one that counts, or none, and no name breaks an event.
func FuzzParse(f *testing.F) {
	f.Add("stress", "sub")
	f.Add("a,pid=1,uid=0", "x,task_memcg=/kubepods/"+victim)
	f.Add("a,task=b", "x,task=init,pid=1,uid=0")
	f.Fuzz(func(t *testing.T, process, sub string) {
		process = strings.Map(func(r rune) rune {
			if r == '\n' {
				return -1
			}
			return r
		}, process[:min(len(process), 15)])
		sub = strings.Map(func(r rune) rune {
			if r == '\n' {
				return -1
			}
			return r
		}, sub[:min(len(sub), 255)])
		k, ok := oomwatch.Parse(record("CONSTRAINT_MEMCG", scope+"/"+sub, process))
		require.True(t, ok)
		assert.Equal(t, 42, k.PID)
		assert.False(t, k.Global)
		assert.True(t, k.Cgroup == "" || strings.HasPrefix(k.Cgroup, scope), k.Cgroup)
		assert.True(t, utf8.ValidString(k.Process))
		assert.LessOrEqual(t, len(k.Process), 64)
		assert.False(t, strings.ContainsFunc(k.Process, func(r rune) bool { return !unicode.IsPrint(r) }))
		oomwatch.Parse(process + sub)
	})
}

// kernel is a log to which records are written, and what a node has.
type kernel struct {
	mu      sync.Mutex
	records chan string
	closed  chan struct{}
	opened  int
	events  []string
}

func (k *kernel) open() (io.ReadCloser, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened++; k.opened == 1 {
		return nil, os.ErrPermission
	}
	k.closed = make(chan struct{})
	return &openLog{k, k.closed}, nil
}

type openLog struct {
	*kernel
	closed chan struct{}
}

func (l *openLog) Read(p []byte) (int, error) {
	select {
	case r := <-l.records:
		if r == "" {
			return 0, errors.New("broken")
		}
		return copy(p, r), nil
	case <-l.closed:
		return 0, os.ErrClosed
	}
}

func (l *openLog) Close() error { close(l.closed); return nil }

func (k *kernel) Record(e *corev1.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := e.InvolvedObject
	k.events = append(k.events, fmt.Sprintf("%s %s %s %s: %s", o.Kind, o.Name, o.FieldPath, e.Reason, e.Message))
}

type node struct{ err error }

func (n node) Pods(context.Context) ([]runtime.Pod, error) {
	return []runtime.Pod{
		{UID: "u2", Containers: []runtime.Container{{ID: victim, Name: "web"}}},
		{UID: "u1", Containers: []runtime.Container{{ID: "other", Name: "side"}, {ID: id, Name: "main"}}},
	}, n.err
}

type statuses struct{}

func (statuses) Pods() (pods []*corev1.Pod) {
	for uid, container := range map[types.UID]string{"u1": "main", "u2": "web"} {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod-" + string(uid), Namespace: "ns", UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: container}}},
		})
	}
	return pods
}

func start(t *testing.T, rt oomwatch.Runtime) *kernel {
	t.Helper()
	k := &kernel{records: make(chan string)}
	w, err := oomwatch.New(oomwatch.Config{NodeName: "n", Pods: statuses{}, Runtime: rt, Recorder: k, Open: k.open})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return k
}

func (k *kernel) requireEvents(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Equal(t, want, k.events)
	k.events = nil
}

// OM-1: events of the container and of the node; a log that cannot be read is opened again.
func TestWatcher_ReportsKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, node{})
		const own = `Pod pod-u1 spec.containers{main} OOMKilling: Process "stress" of container main was killed: the memory limit was reached`
		k.records <- record("CONSTRAINT_MEMCG", scope, "stress") // received when the log is opened again
		k.requireEvents(t, own)
		k.records <- "6,1,2,-;something else"
		k.records <- record("CONSTRAINT_MEMCG", "/kubepods/burstable/podu1/"+id+"/"+victim, "stress") // below its own
		k.requireEvents(t, own)
		k.records <- record("CONSTRAINT_MEMCG", "/system.slice/ssh.service", "sshd")
		k.requireEvents(t)
		k.records <- record("CONSTRAINT_NONE", "/kubepods/podu2/"+victim, "web")
		k.requireEvents(t, "Node n  SystemOOM: System OOM encountered, victim process: web, pid: 42",
			`Pod pod-u2 spec.containers{web} OOMKilling: Process "web" of container web was killed: the node ran out of memory`)
		k.records <- "" // the log breaks, and is opened again
		k.records <- record("CONSTRAINT_CPUSET", "/system.slice/ssh.service", "sshd")
		k.requireEvents(t, "Node n  SystemOOM: System OOM encountered, victim process: sshd, pid: 42")
	})
}

// OM-1: a container that has its processes killed all the time takes no events of others.
func TestWatcher_LimitsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, node{})
		for range 100 {
			k.records <- record("CONSTRAINT_MEMCG", scope, "stress")
		}
		synctest.Wait()
		assert.Len(t, k.events, 5)
		k.events = nil
		k.records <- record("CONSTRAINT_MEMCG", "/kubepods/podu2/"+victim, "web")
		synctest.Wait()
		assert.Len(t, k.events, 1)
		time.Sleep(10 * time.Second)
		k.records <- record("CONSTRAINT_MEMCG", scope, "stress")
		synctest.Wait()
		assert.Len(t, k.events, 2)
	})
}

// lateNode observes its containers only after a time.
type lateNode struct{ at time.Time }

func (n lateNode) Pods(ctx context.Context) ([]runtime.Pod, error) {
	if time.Now().Before(n.at) {
		return nil, nil
	}
	return node{}.Pods(ctx)
}

// OM-1: a container that is killed before its start was observed has its event as soon as it is
// known. Others do not wait for it, and so many that cannot be found take no memory.
func TestWatcher_FindsContainersLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, lateNode{time.Now().Add(31 * time.Second)}) // the log is opened after half a minute
		k.records <- record("CONSTRAINT_NONE", scope, "stress")
		k.requireEvents(t, "Node n  SystemOOM: System OOM encountered, victim process: stress, pid: 42")
		time.Sleep(900 * time.Millisecond)
		k.requireEvents(t)
		time.Sleep(200 * time.Millisecond)
		k.requireEvents(t, `Pod pod-u1 spec.containers{main} OOMKilling: Process "stress" of container main was killed: the node ran out of memory`)
		for range 1000 {
			k.records <- record("CONSTRAINT_MEMCG", "/kubepods/podu9/"+strings.Repeat("f", 64), "stress")
		}
		k.records <- record("CONSTRAINT_MEMCG", scope, "stress")
		k.requireEvents(t, `Pod pod-u1 spec.containers{main} OOMKilling: Process "stress" of container main was killed: the memory limit was reached`)
		time.Sleep(time.Minute)
		k.requireEvents(t)
	})
}

func TestWatcher_WithoutRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, node{errors.New("not yet")})
		k.records <- record("CONSTRAINT_NONE", scope, "stress")
		k.requireEvents(t, "Node n  SystemOOM: System OOM encountered, victim process: stress, pid: 42")
	})
	_, err := oomwatch.New(oomwatch.Config{})
	require.EqualError(t, err, "oomwatch: Config.NodeName, Pods, Runtime and Recorder required")
}

// The kernel's log can be opened by root, and a Read ends when it is closed.
func TestOpenKernelLog(t *testing.T) {
	log, err := oomwatch.OpenKernelLog()
	if err != nil {
		t.Skipf("needs /dev/kmsg, and root: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := log.Read(make([]byte, 1<<13)); err != nil {
				done <- err
				return
			}
		}
	}()
	require.NoError(t, log.Close())
	select {
	case err := <-done:
		require.Error(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Read does not end")
	}
}

// Each Read returns a record that is newer than the log was when it was opened.
func TestOpenKernelLog_ReadsRecords(t *testing.T) {
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/kmsg, and root: %v", err)
	}
	defer func() { _ = kmsg.Close() }()
	write := func(text string) {
		_, err := kmsg.WriteString(text)
		require.NoError(t, err)
	}
	name := fmt.Sprintf("oomwatch-test-%d", time.Now().UnixNano())
	write(name + " before\n")
	log, err := oomwatch.OpenKernelLog()
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	write(name + " after\n")
	for {
		record := make([]byte, 1<<13)
		n, err := log.Read(record)
		require.NoError(t, err)
		if text := string(record[:n]); strings.Contains(text, name) {
			assert.Contains(t, text, ";"+name+" after\n")
			return
		}
	}
}

func ExampleParse() {
	k, ok := oomwatch.Parse("6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task=stress,pid=42,uid=0")
	fmt.Println(ok, k.Process, k.PID, k.Cgroup)
	// Output: true stress 42 /kubepods/pod1/c
}
