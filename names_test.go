package agent_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The vocabulary of the project is that of Kubernetes, the CRI and client-go. The words
// below have a term there, or name nothing in particular, so they occur in no identifier.
const (
	// Reports, observations and iterations.
	wordsOfSpeech = `told tell tells telling heard spoken
		seen glance glancer look looks looked looking
		turn turns turned nudge anew again wanted`
	// Lifecycles, cleanup and other images for a concept.
	wordsOfImages = `lives living book graves bury buried keeper tidy untidy chore chores
		scene roster lane bell stray armer dater ender toucher folder folders
		materials verdict verdicts leftovers patience silence`
	// States of something.
	wordsOfState = `hold holds held ending standing whole wholly gone former formers
		nobody somebody whoever refuse refused fault faults`
)

// allowedNames contain such a word in its own meaning.
var allowedNames = []string{"PageFaults", "MajorFaults", "MajorPageFaults", "AnnotationFirstSeen", "lookPath"}

// injectsFaults matches the files in which a fault is an injected one.
var injectsFaults = regexp.MustCompile(`^runtime/runtimetest/|^internal/agenttest/|_test\.go$`)

var (
	camelWord     = regexp.MustCompile(`[A-Z]*[a-z0-9]+|[A-Z]+`)
	bannedInNames = setOf(strings.Fields(wordsOfSpeech + " " + wordsOfImages + " " + wordsOfState))
	// Words of a log message, an error, a help text.
	bannedText = regexp.MustCompile(`(?i)\b(told|tells?|nobody|somebody|someone|whoever|folders?|anew|look(s|ed)? (at|for)|` +
		`not be had|taken up|for ever|turns?|wanted)\b|(^|%[qsv] )is no [a-z]`)
	// Metrics, labels and annotations.
	nameOutsideGo = regexp.MustCompile(`^sublet(_[a-z_]+|\.dev/.+)$`)
	// Words of a comment or a page, where "for ever" is one as well.
	bannedProse = setOf([]string{"told", "nobody", "somebody", "whoever", "folder", "folders", "anew"})
	// The words of each name so far, in lower case: most names occur often.
	wordsOfName = map[string][]string{}
)

// TestNames_NoBannedWords checks identifiers, texts and comments of all Go files, and all
// pages. The texts of tests may use any word.
func TestNames_NoBannedWords(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute with the race detector, and is the same for all users")
	}
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == "names_test.go":
			return err
		case d.IsDir():
			if path != "." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		found, err := bannedWords(filepath.ToSlash(path), source)
		for _, f := range found {
			t.Error(f)
		}
		return err
	}))
	require.Greater(t, files, 500, "not the whole module was read")
}

// bannedWords returns the places of banned words in a Go file or a page.
func bannedWords(path string, source []byte) (found []string, err error) {
	if filepath.Ext(path) == ".md" {
		for i, line := range strings.Split(string(source), "\n") {
			if w := bannedInProse(line); w != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q", path, i+1, w))
			}
		}
		return found, nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	report := func(at token.Pos, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s: %s", fset.Position(at), fmt.Sprintf(format, args...)))
	}
	for _, c := range file.Comments {
		if w := bannedInProse(c.Text()); w != "" {
			report(c.Pos(), "comment with %q", w)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		for _, id := range declared(n) {
			if w := bannedInName(path, id.Name); w != "" {
				report(id.Pos(), "identifier %s with %q", id.Name, w)
			}
		}
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && !strings.HasSuffix(path, "_test.go") {
			text, err := strconv.Unquote(lit.Value)
			if w := bannedText.FindString(text); err == nil && w != "" && strings.Contains(text, " ") {
				report(lit.Pos(), "text %q with %q", text, w)
			}
			if w := bannedInName(path, text); err == nil && w != "" && nameOutsideGo.MatchString(text) {
				report(lit.Pos(), "name %s with %q", text, w)
			}
		}
		return true
	})
	return found, nil
}

// declared returns the identifiers that a node declares itself.
func declared(n ast.Node) []*ast.Ident {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		return n.Names
	case *ast.Field:
		return n.Names
	case *ast.AssignStmt:
		return defined(n.Tok, n.Lhs...)
	case *ast.RangeStmt:
		return defined(n.Tok, n.Key, n.Value)
	}
	return nil
}

// defined returns the identifiers on the left side of :=.
func defined(tok token.Token, left ...ast.Expr) (ids []*ast.Ident) {
	for _, e := range left {
		if id, ok := e.(*ast.Ident); ok && tok == token.DEFINE {
			ids = append(ids, id)
		}
	}
	return ids
}

func setOf(words []string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, w := range words {
		set[w] = true
	}
	return set
}

// bannedInProse returns the first banned word of a text. It reads some megabytes, for which a regular expression takes long with the
// detector of races.
func bannedInProse(text string) string {
	last := ""
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		lower := strings.ToLower(word)
		switch {
		case bannedProse[lower]:
			return word
		case lower == "ever" && last == "for":
			return "for ever"
		}
		last = lower
	}
	return ""
}

// bannedInName returns the first banned word of an identifier.
func bannedInName(path, name string) string {
	if slices.Contains(allowedNames, name) {
		return ""
	}
	words, ok := wordsOfName[name]
	if !ok {
		words = camelWord.FindAllString(name, -1)
		for i, w := range words {
			words[i] = strings.ToLower(w)
		}
		wordsOfName[name] = words
	}
	for _, w := range words {
		if bannedInNames[w] && (!strings.HasPrefix(w, "fault") || !injectsFaults.MatchString(path)) {
			return w
		}
	}
	return ""
}

func TestBannedWords_FindsEachKind(t *testing.T) {
	for name, tt := range map[string]struct {
		path, source string
		want         []string
	}{
		"type, field, method, parameter": {
			"a/a.go", "package a\ntype keeper struct{ isGone bool }\nfunc (k keeper) LookAt(former int) {}\n",
			[]string{"identifier keeper", "identifier isGone", "identifier LookAt", "identifier former"},
		},
		"variables": {
			"a/a.go", "package a\nvar told int\nfunc f() {\n\tseen := 1\n\tfor again := range seen {\n\t\t_ = again\n\t}\n}\n",
			[]string{"identifier told", "identifier seen", "identifier again"},
		},
		"a use without a declaration":      {"a/a.go", "package a\nvar x = b.Told\n", nil},
		"message":                          {"a/a.go", "package a\nvar x = \"pod is told\"\n", []string{`text "pod is told"`}},
		"message of a test":                {"a/a_test.go", "package a\nvar x = \"pod is told\"\n", nil},
		"one word, as in a key":            {"a/a.go", "package a\nvar x = \"told\"\n", nil},
		"metric":                           {"a/a.go", "package a\nvar x = \"sublet_worker_turns\"\n", []string{`name sublet_worker_turns`}},
		"annotation":                       {"a/a.go", "package a\nvar x = \"sublet.dev/is-gone\"\n", []string{`name sublet.dev/is-gone`}},
		"comment":                          {"a/a.go", "package a\n\n// x is a folder.\nvar x int\n", []string{`comment with "folder"`}},
		"two words":                        {"docs/a.md", "# A\n\nIt waits for ever.\n", []string{`docs/a.md:3: "for ever"`}},
		"page":                             {"docs/a.md", "# A\n\nNobody waits.\n", []string{`docs/a.md:3: "Nobody"`}},
		"faults of a component":            {"pleg/a.go", "package a\nvar podFaults int\n", []string{"identifier podFaults"}},
		"faults that a test injects":       {"pleg/a_test.go", "package a\nvar podFaults int\n", nil},
		"faults that a test kit injects":   {"runtime/runtimetest/a.go", "package a\nvar podFaults int\n", nil},
		"page faults":                      {"a/a.go", "package a\nvar PageFaults int\n", nil},
		"a banned word in a longer word":   {"a/a.go", "package a\nvar lookup, threshold, return1, unfolder int\n", nil},
		"a banned word in capital letters": {"a/a.go", "package a\nvar isTOLD int\n", []string{"identifier isTOLD"}},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := bannedWords(tt.path, []byte(tt.source))
			require.NoError(t, err)
			require.Len(t, found, len(tt.want), "%v", found)
			for i, want := range tt.want {
				assert.Contains(t, found[i], want)
			}
		})
	}
	_, err := bannedWords("a.go", []byte("packet a"))
	require.Error(t, err, "a file that cannot be parsed")
}
