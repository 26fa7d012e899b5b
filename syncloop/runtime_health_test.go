package syncloop

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtimestate"
)

// A failure of the runtime is said once, in the words of a kubelet.
func TestRuntimeHealth_SaidOnce(t *testing.T) {
	down := errors.New("get runtime status: connection refused")
	network := fmt.Errorf("%w: cni plugin not initialized", runtimestate.ErrNetworkNotReady)
	for name, tc := range map[string]struct {
		loop, rt error
		want     string // empty: nil
	}{
		"well":                       {nil, nil, ""},
		"only the loop is not":       {ErrStalled, nil, ""},
		"the loop waits for it":      {fmt.Errorf("%w: %w", ErrRuntimeNotReady, down), down, ""},
		"the loop does not know yet": {nil, down, "container runtime not ready: get runtime status: connection refused"},
		"the loop stalls as well":    {ErrStalled, down, "container runtime not ready: get runtime status: connection refused"},
		"network":                    {nil, network, "container runtime network not ready: runtime reports NetworkReady=false: cni plugin not initialized"},
	} {
		t.Run(name, func(t *testing.T) {
			err := RuntimeHealth(tc.loop, tc.rt)
			if tc.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.EqualError(t, err, tc.want)
			assert.ErrorIs(t, err, tc.rt)
			assert.Equal(t, !errors.Is(err, runtimestate.ErrNetworkNotReady), errors.Is(err, ErrRuntimeNotReady))
		})
	}
}
