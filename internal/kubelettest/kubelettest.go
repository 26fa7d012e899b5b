// Package kubelettest reads tables of cases with what the kubelet makes of them, so that a
// difference from it that is not intended fails a test. The tables are files kubelet-*.jsonl
// in the testdata directories of packages: lines that begin with # say what is in them, and each
// other line is a case in JSON. Chosen at random, a case is in the table because it reached a
// statement of the kubelet, or had a kind of result, that no case before it had.
//
// testdata/kubelet/generate.sh writes the tables again, with the code of the Kubernetes version
// in internal/kubetest/apiserver/go.mod. It leaves out inputs of which docs/differences.md says
// that the result differs.
package kubelettest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// RunCases runs a test for each case of a table. The tests are named after their lines.
func RunCases[C any](t *testing.T, file string, test func(t *testing.T, c C)) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	count := 0
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var c C
		require.NoError(t, json.Unmarshal(line, &c), "line %d", i+1)
		count++
		t.Run(fmt.Sprint("line ", i+1), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("%s:%d: %s", file, i+1, line)
				}
			}()
			test(t, c)
		})
	}
	require.NotZero(t, count, "%s has no cases", file)
}
