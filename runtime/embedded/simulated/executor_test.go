package simulated

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestExecutor_RunsItsScript(t *testing.T) {
	const never = -1
	tests := map[string]struct {
		annotations []string
		cmd         []string
		attempt     uint32
		limit       int64
		after       time.Duration // when it must have ended; never
		code        int32
		reason      string
	}{
		"for ever without a script":    {after: never},
		"for a time":                   {annotations: []string{"sim.sublet.dev/run-for: 10s"}, after: 10 * time.Second, reason: "Completed"},
		"with an exit code":            {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 3"}, after: time.Second, code: 3, reason: "Error"},
		"with a code by attempt":       {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 1,2,0"}, attempt: 1, after: time.Second, code: 2, reason: "Error"},
		"with the last code from then": {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 1,2,0"}, attempt: 7, after: time.Second, reason: "Completed"},
		"by its own name first":        {annotations: []string{"sim.sublet.dev/run-for: 1s", "c.sim.sublet.dev/run-for: 5s"}, after: 5 * time.Second, reason: "Completed"},
		"not by another's name":        {annotations: []string{"other.sim.sublet.dev/run-for: 5s"}, after: never},
		"until the kernel kills it":    {annotations: []string{"sim.sublet.dev/oom-after: 3s"}, after: 3 * time.Second, code: 137, reason: "OOMKilled"},
		"until its limit is reached":   {annotations: []string{"sim.sublet.dev/memory: 0s=0,10s=100Mi"}, limit: 50 << 20, after: 5 * time.Second, code: 137, reason: "OOMKilled"},
		"as its command says":          {cmd: []string{"sleep", "7"}, after: 7 * time.Second, reason: "Completed"},
		"as its shell command says":    {cmd: []string{"sh", "-c", "echo hi; sleep 2; exit 4"}, after: 2 * time.Second, code: 4, reason: "Error"},
		"for ever if it asks to":       {cmd: []string{"sleep", "infinity"}, after: never},
		"for ever if not understood":   {cmd: []string{"nginx", "-g", "daemon off;"}, after: never},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", tc.annotations...)), func(c *v1.ContainerConfig) {
					c.Metadata.Attempt = tc.attempt
					c.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: tc.limit}}
				}, tc.cmd...)
				if tc.after == never {
					time.Sleep(1000 * time.Hour)
					assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())
					return
				}
				time.Sleep(tc.after - time.Millisecond)
				assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())
				time.Sleep(2 * time.Millisecond)
				st := g.Inspect(t, id)
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetState())
				assert.Equal(t, tc.code, st.GetExitCode())
				assert.Equal(t, tc.reason, st.GetReason())
				assert.Equal(t, int64(tc.after), st.GetFinishedAt()-st.GetStartedAt())
			})
		})
	}
}

// The command of a container adds its traps to the script.
func TestExecutor_TrapsOfTheCommandCount(t *testing.T) {
	for command, want := range map[string]int32{
		"trap '' TERM; sleep 1000": 137, "trap 'exit 3' TERM; sleep 1000": 3, "sleep 1000": 143,
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, Config{})
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.Command = []string{"sh", "-c", command} })
			g.Stop(t, id, 1)
			assert.Equal(t, want, g.Inspect(t, id).GetExitCode(), command)
		})
	}
}
