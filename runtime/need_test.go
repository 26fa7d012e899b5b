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
	require.NoError(t, runtime.CheckNeeds(reopener{}))
	require.NoError(t, runtime.CheckNeeds(reopener{}, rotation))
	require.NoError(t, runtime.CheckNeeds(unwraps{reopener{}}, rotation))
	require.EqualError(t, runtime.CheckNeeds(hides{reopener{}}, rotation),
		"the runtime is no runtime.LogReopener, without which there is no log rotation; a decorator needs a method Unwrap() any")
	require.ErrorContains(t, runtime.CheckNeeds(reopener{}, rotation, removal), "runtime.ContainerRemover")

	removal.Optional = true
	require.NoError(t, runtime.CheckNeeds(reopener{}, removal, rotation))
	assert.False(t, removal.IsMet(reopener{}))
	assert.True(t, rotation.IsMet(reopener{}))
}
