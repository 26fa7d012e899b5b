package podlogs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podlogs"
	"github.com/sublet-dev/agent/runtime"
)

func TestFind(t *testing.T) {
	pod := &runtime.Pod{Namespace: "ns", Name: "web", UID: "u1", Containers: []runtime.Container{
		{Name: "app", Attempt: 2},
		{Name: "other", Attempt: 0},
		{Name: "app", Attempt: 1},
		{Name: "app", Attempt: 0},
		{Name: "restarted", Attempt: 3, State: runtime.Created},
		{Name: "restarted", Attempt: 2, State: runtime.Exited},
		{Name: "restarted", Attempt: 1, State: runtime.Exited},
		{Name: "begun", Attempt: 1, State: runtime.Created},
		{Name: "begun", Attempt: 0, State: runtime.Created},
	}}
	for name, tt := range map[string]struct {
		container string
		previous  bool
		want      uint32
		err       string
	}{
		"the newest attempt":       {"app", false, 2, ""},
		"the attempt before":       {"app", true, 1, ""},
		"the only attempt":         {"other", false, 0, ""},
		"none before":              {"other", true, 0, `previous terminated container "other" in pod "web" not found`},
		"one that has started":     {"restarted", false, 2, ""},
		"the one before a new one": {"restarted", true, 2, ""},
		"none that has started":    {"begun", false, 1, ""},
		"no such container":        {"none", false, 0, `container "none" of pod ns/web in the runtime: not found`},
		"no such container so far": {"none", true, 0, `previous terminated container "none" in pod "web" not found`},
	} {
		c, err := podlogs.Find(pod, tt.container, tt.previous)
		if tt.err != "" {
			require.ErrorIs(t, err, runtime.ErrNotFound, name)
			require.EqualError(t, err, tt.err, name)
			continue
		}
		require.NoError(t, err, name)
		assert.Equal(t, tt.want, c.Attempt, name)
	}
	path, err := podlogs.Path(pod, &pod.Containers[2])
	require.NoError(t, err)
	assert.Equal(t, "ns_web_u1/app/1.log", path)
	_, err = podlogs.Path(pod, &runtime.Container{Name: "../x"})
	require.ErrorIs(t, err, runtime.ErrInvalid)
}
