package imagegc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/needtest"
)

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{
		"image collection (runtime.ImageStore)", "image collection (runtime.ImageUser)", "figures of the image file system (runtime.ImageFSReporter)",
		"optional: asking for the image of sandboxes (runtime.SandboxImageReporter)",
	}, needtest.Names(imagegc.Config{}.Needs()))
}

func TestConfig_CheckNeedsNothingRequired(t *testing.T) {
	require.NoError(t, imagegc.Config{}.Check())
	for _, c := range []imagegc.Config{{Period: -1}, {DiskSettleTime: -1}, {SourcesTimeout: -1}} {
		require.EqualError(t, c.Check(), "imagegc: Config.Period, DiskSettleTime and SourcesTimeout must not be negative")
	}
	require.ErrorContains(t, imagegc.Config{Policy: imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 60}}.Check(), "LowThresholdPercent 60")
}

// sandboxes is a runtime that knows the image of its sandboxes, and one that is decorated.
type (
	sandboxes struct{}
	decorated struct{ sandboxes }
)

func (sandboxes) SandboxImage(context.Context) (string, error) { return "pause", nil }
func (d decorated) Unwrap() any                                { return d.sandboxes }

func TestSandboxImageOf_Capability(t *testing.T) {
	assert.Nil(t, imagegc.SandboxImageOf(struct{}{}))
	image, err := imagegc.SandboxImageOf(decorated{})(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "pause", image)
}
