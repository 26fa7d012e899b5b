package probe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

// PB-2: the timeout of a command begins when the command does. A runtime that is slow is no
// failure of its containers, unless it does not answer at all.
func TestManager_RuntimeStalls(t *testing.T) {
	for stall, changes := range map[time.Duration][]string{
		50 * time.Second: nil,
		2 * time.Minute:  {"Liveness 1 failed"},
	} {
		inBubble(t, func(b *bench) {
			b.n.with(func() { b.n.stall = stall })
			b.n.set("u", "1", runtime.Running)
			b.AddPod(podOf("u", nil, nil, every(10, command("x"))))
			b.after(10 * time.Minute)
			assert.Equal(t, changes, b.changes(), stall)
			assert.Equal(t, changes == nil, len(b.n.events()) == 0, stall)
		})
	}
}
