package pleg

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// PL-2: Drain logs each event once at Debug, with the name of the pod even if it is
// removed, and without the attributes that the event does not have.
func TestDrain_LogsEvents(t *testing.T) {
	rt := newFakeRuntime()
	p := newTestPod("u", runtime.Running)
	p.Namespace, p.Name = "default", "web"
	rt.set(p, false)
	var log bytes.Buffer
	logger := logtest.NewLogger(&log, slog.LevelDebug)
	inBubble(t, rt, Config{Logger: logger}, func(env *testEnv) {
		env.after(time.Second)
		env.Drain()
		env.Drain()
		p.Containers = []runtime.Container{{ID: "a-u", Name: "a", State: runtime.Exited, ExitCode: 3}}
		rt.set(p, true)
		env.after(0)
		env.Drain()
		rt.set(runtime.Pod{UID: "u"}, true)
		env.after(0)
		rt.set(runtime.Pod{UID: "absent"}, true)
		env.after(0)
		env.Drain()
	})
	want := []string{
		"type=ContainerStarted pod=default/web podUID=u sandboxID=s-u",
		"type=ContainerStarted pod=default/web podUID=u containerName=a attempt=0 containerID=a-u",
		"type=ContainerDied pod=default/web podUID=u containerName=a attempt=0 containerID=a-u exitCode=3",
		"type=ContainerDied pod=default/web podUID=u sandboxID=s-u",
		"type=ContainerRemoved pod=default/web podUID=u sandboxID=s-u",
		"type=ContainerRemoved pod=default/web podUID=u containerName=a attempt=0 containerID=a-u",
		"type=ContainerRemoved podUID=absent",
	}
	var got []string
	for line := range strings.Lines(log.String()) {
		if attrs, ok := strings.CutPrefix(strings.TrimSpace(line), `level=DEBUG msg="pod lifecycle event" `); ok {
			got = append(got, attrs)
		}
	}
	assert.Equal(t, want, got)
}

func TestEvent_AttrsOfMissedContainer(t *testing.T) {
	e := Event{Type: ContainerRemoved, UID: "u", Name: "a", Attempt: 2}
	assert.Equal(t, "[type=ContainerRemoved podUID=u containerName=a attempt=2]", slog.GroupValue(e.attrs(&runtime.Pod{})...).String())
}

func TestDrain_BuildsNoLogAttributesWithoutDebug(t *testing.T) {
	rt := newFakeRuntime()
	rt.set(newTestPod("u", runtime.Running), false)
	var log bytes.Buffer
	inBubble(t, rt, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(env *testEnv) {
		env.after(time.Second)
		assert.Len(t, env.Drain(), 2)
	})
	assert.Empty(t, log.String())
}
