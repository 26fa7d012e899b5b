package translate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// AG-4: a start that ended with the process that asked for it is none; any other
// failure to start is an end of the container.
func TestStartThatWasCutShortIsNoEnd(t *testing.T) {
	for name, c := range map[string]struct {
		message string
		reason  string
		want    runtime.ContainerState
	}{
		"the caller went away":            {"failed to start: context canceled: unknown", "StartError", runtime.Created},
		"no such command":                 {"exec: no such file or directory", "StartError", runtime.Exited},
		"it ran, and said so when it did": {"context canceled", "Error", runtime.Exited},
	} {
		t.Run(name, func(t *testing.T) {
			got := AddContainerStatus(runtime.Container{}, &v1.ContainerStatus{
				State: v1.ContainerState_CONTAINER_EXITED, ExitCode: 128, Reason: c.reason, Message: c.message,
			})
			assert.Equal(t, c.want, got.State)
		})
	}
}
