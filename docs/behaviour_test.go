package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocs_BehaviourIsProven keeps BEHAVIOUR.md and the tests together: each id is that of one line, and a test contains it;
// an id in a test, or in another line, is one that there is.
func TestDocs_BehaviourIsProven(t *testing.T) {
	text, err := os.ReadFile("BEHAVIOUR.md")
	require.NoError(t, err)
	lines := map[string]int{}
	prefixes := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^- (([A-Z]{2})-\d+) `).FindAllSubmatch(text, -1) {
		lines[string(m[1])]++
		prefixes[string(m[2])] = true
	}
	require.NotEmpty(t, lines)
	for id, n := range lines {
		if n > 1 {
			t.Errorf("BEHAVIOUR.md: %d lines have the id %s", n, id)
		}
	}

	id := regexp.MustCompile(`\b([A-Z]{2})-\d+\b`)
	proven := map[string]bool{}
	find := func(file string, text []byte) {
		for _, m := range id.FindAllSubmatch(text, -1) {
			if name := string(m[0]); prefixes[string(m[1])] {
				proven[name] = proven[name] || strings.HasSuffix(file, "_test.go")
				if lines[name] == 0 {
					t.Errorf("%s: no line of BEHAVIOUR.md has the id %s", file, name)
				}
			}
		}
	}
	find("BEHAVIOUR.md", text)
	require.NoError(t, filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		find(file, text)
		return err
	}))
	var unproven []string
	for id := range lines {
		if !proven[id] {
			unproven = append(unproven, id)
		}
	}
	slices.Sort(unproven)
	if len(unproven) > 0 {
		t.Errorf("no test contains an id of BEHAVIOUR.md: %v", unproven)
	}
}
