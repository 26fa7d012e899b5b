package scenario

import (
	"flag"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the observed traces and statuses into the scenario files")

// TestScenarios plays each testdata/*.txtar with an agent and a simulated runtime in a
// bubble. A script has one command per line, after its time:
//
//	put FILE           adds these pods to the memory source
//	delete NAME        removes a pod from it
//	mark NAME GRACE    gives a pod of it a deletion timestamp, as an API server does
//	write FILE, copy FILE TO, remove FILE   the same in a directory of manifests
//	kill POD CONTAINER        stops the container without the agent
//	stop-sandbox POD   stops the sandbox without the agent
//	stop-agent, kill-agent, start-agent, restart-agent
//	runtime down|up|reboot    ends or starts the runtime's process, or restarts the node
//	fault RULE…, no-faults    sets the faults of calls of the runtime
//	trap RPC N before|after restart-runtime|kill-agent FOR    at the Nth call of RPC
//	listing-takes FOR         sets the duration of a list of all pods in the runtime
//	sink fails|works
//	end
//
// In a trace, ">" is an input, "=" a status that was sent and "!" a warning.
func TestScenarios(t *testing.T) {
	files := scenarioFiles(t, "*.txtar")
	require.GreaterOrEqual(t, len(files), 30)
	for _, path := range files {
		t.Run(caseName(path), func(t *testing.T) {
			sc := readScenario(t, path)
			var got string
			synctest.Test(t, func(t *testing.T) {
				p := newPlayer(t, sc, nil)
				p.play(sc.script, p.Trace.Command)
				got = p.Trace.String() + p.Left()
				p.end()
			})
			if *update {
				sc.write(t, path, "trace", got)
				return
			}
			assert.Equal(t, sc.files["trace"], got, "-update writes the observed trace, if that is right")
		})
	}
}
