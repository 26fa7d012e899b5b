package containergc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// Where the time of the last change of the metadata is not known, the directory is always read.
func TestCollector_ReadsNoUnchangedLogs(t *testing.T) {
	n, dir := &countedNode{node: &node{pods: map[types.UID]*runtime.Pod{}}}, t.TempDir()
	const pods = 500
	for i := range pods {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("ns_ended_u%d", i)), 0o755))
	}
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(dir, past, past))
	c := collector(t, containergc.Config{Containers: n, LogsDir: dir, Owner: func() string { return "one" }, PodState: podStates{}.of})
	collect := func() {
		if _, err := c.Collect(t.Context()); err != nil {
			panic(err)
		}
	}
	collect()
	assert.Less(t, testing.AllocsPerRun(5, collect), pods/10.)
	assert.Greater(t, testing.AllocsPerRun(5, func() { n.changes++; collect() }), float64(pods))
}
