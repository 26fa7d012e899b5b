package runtime_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// reopener is a runtime that can reopen logs, and nothing else.
type reopener struct{}

func (reopener) ReopenLog(context.Context, string) error { return nil }

// hides decorates a runtime; unwraps shows what it decorates.
type (
	hides   struct{ rt any }
	unwraps struct{ rt any }
)

func (u unwraps) Unwrap() any { return u.rt }

func TestCheckNeeds_NamesWhatIsMissing(t *testing.T) {
	rotation, removal := runtime.NeedFor[runtime.LogReopener]("log rotation"), runtime.NeedFor[runtime.ContainerRemover]("container collection")
	require.NoError(t, runtime.CheckNeeds(reopener{}, "it"))
	require.NoError(t, runtime.CheckNeeds(reopener{}, "it", rotation))
	require.NoError(t, runtime.CheckNeeds(unwraps{reopener{}}, "it", rotation))
	require.EqualError(t, runtime.CheckNeeds(hides{reopener{}}, "it", rotation),
		"it: the runtime is no runtime.LogReopener, which is needed for log rotation; a decorator needs a method Unwrap() any")
	require.ErrorContains(t, runtime.CheckNeeds(reopener{}, "it", rotation, removal), "runtime.ContainerRemover")
	assert.Equal(t, []runtime.Need{removal}[0].String(), runtime.Unmet(reopener{}, rotation, removal)[0].String())
	assert.Equal(t, "container collection (runtime.ContainerRemover)", removal.String())

	removal.Optional = true
	require.NoError(t, runtime.CheckNeeds(reopener{}, "it", removal, rotation))
	assert.False(t, removal.IsMet(reopener{}))
	assert.True(t, rotation.IsMet(reopener{}))
}
