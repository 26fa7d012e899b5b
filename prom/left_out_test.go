package prom_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/metrics.md says of no metric that there is that it is left out.
func TestMetrics_LeftOutInDocs(t *testing.T) {
	m, reg := newMetrics(t)
	callAllHooks(t, m, reg)
	families, err := reg.Gather()
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "are left out:\n")
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, "\n## ")
	require.True(t, ok)
	names := regexp.MustCompile("`([a-z_*]+)`")
	patterns := 0
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if strings.Contains(first, " except ") {
			continue
		}
		for _, name := range names.FindAllStringSubmatch(first, -1) {
			patterns++
			for _, f := range families {
				is, err := path.Match(name[1], f.GetName())
				require.NoError(t, err)
				assert.False(t, is, "%s is there, and left out as %s", f.GetName(), name[1])
			}
		}
	}
	assert.Greater(t, patterns, 20)
}
