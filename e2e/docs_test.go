//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/podspec.md")

const intro = `# Supported pod features

[podspec/FIELDS.md](../podspec/FIELDS.md) lists every field of a pod and whether
it works, is passed to the runtime, rejected or ignored.

Each of these manifests runs on real containerd. Its description is checked from
inside its containers, in ` + "`/proc`" + ` or through the CRI (package ` + "`e2e`" + `):

| manifest | what it shows |
|---|---|
`

// The list in the documentation is that of testdata. SP-2, RT-11
func TestDocsListEveryManifest(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	var want strings.Builder
	want.WriteString(intro)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		var shows []string
		for line := range strings.Lines(string(b)) {
			text, ok := strings.CutPrefix(line, "# ")
			if !ok {
				break
			}
			shows = append(shows, strings.TrimSpace(text))
		}
		require.NotEmpty(t, shows, f)
		name := strings.TrimSuffix(filepath.Base(f), ".yaml")
		fmt.Fprintf(&want, "| [%s](../e2e/%s) | %s |\n", name, f, strings.Join(shows, " "))
	}
	const doc = "../docs/podspec.md"
	if *update {
		require.NoError(t, os.WriteFile(doc, []byte(want.String()), 0o644))
	}
	have, err := os.ReadFile(doc)
	require.NoError(t, err)
	require.Equal(t, want.String(), string(have), "go test ./e2e -run Docs -update")
}
