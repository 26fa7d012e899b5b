package kubelettest

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All tables are of the kubelet that the other tests run beside the agent.
func TestTables_AreOfOneKubelet(t *testing.T) {
	module, err := os.ReadFile("../kubetest/apiserver/go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindSubmatch(module)
	require.NotNil(t, version)
	tables, err := filepath.Glob("../../*/testdata/kubelet-*.jsonl")
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	for _, table := range tables {
		assert.Contains(t, head(t, table), "from the code of the kubelet "+string(version[1])+"; do not edit", "%s: run testdata/kubelet/generate.sh", table)
	}
}

// head returns the lines before the first case.
func head(t *testing.T, table string) string {
	t.Helper()
	f, err := os.Open(table)
	require.NoError(t, err)
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan() && strings.HasPrefix(s.Text(), "#"); {
		lines = append(lines, s.Text())
	}
	return strings.Join(lines, "\n")
}

func TestRunCases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet-sums.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("# Sums.\n{\"a\": 1, \"sum\": 2}\n\n{\"a\": 2, \"sum\": 4}\n"), 0o600))
	var names []string
	RunCases(t, file, func(t *testing.T, c struct{ A, Sum int }) {
		names = append(names, t.Name())
		assert.Equal(t, c.Sum, 2*c.A)
	})
	assert.Equal(t, []string{"TestRunCases/line_2", "TestRunCases/line_4"}, names)
}
