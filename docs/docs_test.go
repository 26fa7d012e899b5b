// Package docs_test checks that documents refer to what exists, and that their programs compile.
package docs_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docTree is what documents refer to: files, tests, and exported names with their package: "pleg.Config", "pleg.Config.Runtime".
type docTree struct {
	files    map[string]bool // paths, and names of files without directory
	tests    map[string]bool
	testsIn  map[string][]string // by directory
	packages map[string]bool     // paths and names
	exported map[string]bool
	targets  map[string]bool // of make

	variables map[string]bool // of the environment, named by Go files and scripts
	sources   []string        // text of Go files, without the indentation
}

// history describes earlier versions, whose names are gone.
const history = "CHANGELOG.md"

// TestDocs_NamesExist keeps names in documents true: relative links, files, tests, make targets, and identifiers of this module.
func TestDocs_NamesExist(t *testing.T) {
	if testing.Short() {
		t.Skip("reads all packages, and is the same for all users")
	}
	tree := docTreeOf(t)
	for doc, text := range readDocs(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
			if !tree.files[path.Join(path.Dir(doc), m[1])] {
				t.Errorf("%s: link to %s, which does not exist", doc, m[1])
			}
		}
		if doc == history {
			continue
		}
		for _, m := range regexp.MustCompile(`\bmake ([a-z]+(-[a-z]+)*)(`+"`"+`|\n| [A-Z]+=)`).FindAllStringSubmatch(text, -1) {
			if !tree.targets[m[1]] {
				t.Errorf("%s: make %s, which is not a target", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(withoutBlocks(text), -1) {
			if why := tree.unknown(path.Dir(doc), m[1]); why != "" {
				t.Errorf("%s: `%s`: %s", doc, m[1], why)
			}
		}
		checkCommands(t, tree, doc, text)
	}
}

// unknown returns why a name in backticks does not exist, or "" for one that does, or is not about this module.
func (d *docTree) unknown(dir, name string) string {
	switch {
	case regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)[A-Z]\w*$`).MatchString(name):
		if !d.tests[name] {
			return "no such test"
		}
	case regexp.MustCompile(`^[\w./-]+\.(go|md|yaml|txtar)$`).MatchString(name) && !strings.HasPrefix(name, "/"):
		if !d.files[name] && !d.files[path.Join(dir, name)] {
			return "no such file"
		}
	case regexp.MustCompile(`^sublet(_|\.dev/)[a-z_./-]+[a-z]$`).MatchString(name):
		if !slices.ContainsFunc(d.sources, func(src string) bool { return strings.Contains(src, `"`+name) }) {
			return "no such metric, label or annotation"
		}
	case regexp.MustCompile(`^\w+(\.\w+){1,2}(\(.*\))?$`).MatchString(name):
		name, _, _ = strings.Cut(name, "(")
		pkg, rest, _ := strings.Cut(name, ".")
		if d.packages[pkg] && token.IsExported(rest) && !d.exported[name] {
			return "no such name"
		}
	}
	return ""
}

// checkCommands checks the packages and the patterns of go commands, and variables of the environment.
func checkCommands(t *testing.T, d *docTree, doc, text string) {
	for _, name := range variable.FindAllString(text, -1) {
		if !d.variables[name] {
			t.Errorf("%s: nothing reads %s", doc, name)
		}
	}
	for _, m := range regexp.MustCompile(`go (test|run) [^\n`+"`"+`]*`).FindAllString(text, -1) {
		var tests []string
		dirs := regexp.MustCompile(`\s\.(?:/([\w/.]+))?(?:\s|$)`).FindAllStringSubmatch(m, -1)
		for _, dir := range dirs {
			switch name := strings.TrimSuffix(strings.TrimSuffix(dir[1], "..."), "/"); {
			case name == "" && dir[1] == "":
				name = "."
				fallthrough
			case name != "":
				if !d.packages[name] {
					t.Errorf("%s: %s: no package %s", doc, m, name)
				}
				tests = append(tests, d.testsIn[name]...)
			}
		}
		for _, flag := range regexp.MustCompile(`-(?:run|bench|fuzz)[ =](?:'([^']+)'|(\S+))`).FindAllStringSubmatch(m, -1) {
			first, _, _ := strings.Cut(flag[1]+flag[2], "/")
			for pattern := range strings.SplitSeq(first, "|") {
				re, err := regexp.Compile(pattern)
				if err != nil || pattern != "^$" && len(tests) > 0 && !slices.ContainsFunc(tests, re.MatchString) {
					t.Errorf("%s: %s: %q matches no test there", doc, m, pattern)
				}
			}
		}
	}
}

// TestDocs_ConceptsAreMapped requires an existing package or name of this module in each row of docs/concepts.md that has one.
func TestDocs_ConceptsAreMapped(t *testing.T) {
	if testing.Short() {
		t.Skip("reads all packages, and is the same for all users")
	}
	tree := docTreeOf(t)
	rows := 0
	for line := range strings.Lines(readDocs(t)["docs/concepts.md"]) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || strings.HasPrefix(line, "| kubelet") {
			continue
		}
		rows++
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			name := strings.TrimSuffix(m[1], "/")
			if !tree.packages[name] && !tree.exported[name] {
				t.Errorf("docs/concepts.md: %s is not a package or a name of this module", m[1])
			}
		}
		if !strings.Contains(cells[1], "`") && !strings.HasPrefix(cells[1], "none") {
			t.Errorf("docs/concepts.md: no name in %q", line)
		}
	}
	require.Greater(t, rows, 50)
}

// TestDocs_ReadmeNamesEachPackage compares the tables of packages with the module.
func TestDocs_ReadmeNamesEachPackage(t *testing.T) {
	readme, architecture, missing := readDocs(t)["README.md"], readDocs(t)["ARCHITECTURE.md"], map[string]bool{}
	walk(t, func(file string) {
		dir := path.Dir(file)
		isPackage := path.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "examples/")
		isNamed := strings.Contains(readme, "`"+dir+"`") && strings.Contains(architecture, "`"+dir+"`")
		if isPackage && dir != "." && dir != "e2e" && !strings.HasPrefix(dir, "test/") && !strings.Contains(dir, "internal") && !strings.Contains(dir, "testdata") && !isNamed {
			missing[dir] = true
		}
		if strings.HasPrefix(file, "examples/") && path.Base(file) == "main.go" && !strings.Contains(readme, "`"+dir+"`") {
			missing[dir] = true
		}
	})
	require.Empty(t, missing, "not in README.md, or a package not in ARCHITECTURE.md")
}

// TestDocs_SnippetsCompile compares each Go snippet of a document with the Go files of this module, which contain it word for word.
func TestDocs_SnippetsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles, and is the same for all users")
	}
	tree := docTreeOf(t)
	for doc, text := range readDocs(t) {
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(text, -1) {
			snippet := unindented(m[1])
			if !slices.ContainsFunc(tree.sources, func(src string) bool { return strings.Contains(src, snippet) }) {
				t.Errorf("%s: no Go file contains\n%s", doc, m[1])
			}
		}
	}
}

// TestMain runs the tests in the root directory of the module.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestDocs_ReadmeIsShort(t *testing.T) {
	require.Less(t, strings.Count(readDocs(t)["README.md"], "\n"), 150)
}

// withoutBlocks returns text without its fenced blocks.
func withoutBlocks(text string) string {
	return regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
}

// unindented returns text without the indentation of its lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimLeft(line, " \t"))
	}
	return b.String()
}

// readDocs returns the text of each document of this module.
func readDocs(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	walk(t, func(file string) {
		if path.Ext(file) == ".md" {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			docs[file] = string(b)
		}
	})
	require.Contains(t, docs, "docs/metrics.md")
	return docs
}

// walk calls f with each file of the module.
func walk(t *testing.T, f func(file string)) {
	t.Helper()

	require.NoError(t, filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache") {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			f(filepath.ToSlash(file))
		}
		return err
	}))
}

var (
	variable = regexp.MustCompile(`\b(?:SUBLET|CRI)_[A-Z0-9_]+\b`) // of the environment
	testName = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz|Example)`)

	parsedTree *docTree // see docTreeOf
)

// docTreeOf returns what the module has. All Go files are parsed, once for all tests.
func docTreeOf(t *testing.T) *docTree {
	t.Helper()
	if parsedTree == nil {
		parsedTree = readDocTree(t)
	}
	return parsedTree
}

func readDocTree(t *testing.T) *docTree {
	t.Helper()
	d := &docTree{
		files: map[string]bool{}, tests: map[string]bool{}, testsIn: map[string][]string{}, packages: map[string]bool{}, exported: map[string]bool{},
		targets: map[string]bool{}, variables: map[string]bool{},
	}
	walk(t, func(file string) {
		d.files[file], d.files[path.Base(file)] = true, true
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			d.files[dir] = true
		}
		ext := path.Ext(file)
		if ext != ".go" && ext != ".sh" && ext != "" {
			return
		}
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		isGo := ext == ".go"
		if !isGo && !bytes.HasPrefix(src, []byte("#!")) {
			return
		}
		d.addVariables(string(src))
		if !isGo {
			return
		}
		d.sources = append(d.sources, unindented(string(src)))
		parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		require.NoError(t, err)
		d.packages[path.Dir(file)], d.packages[parsed.Name.Name] = true, true
		d.add(path.Dir(file), parsed)
	})
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllSubmatch(makefile, -1) {
		d.targets[string(m[1])] = true
	}
	return d
}

// addVariables adds the variables of the environment that a file names. Only lines with a prefix of one are matched: the detector of
// races makes that slow.
func (d *docTree) addVariables(src string) {
	for line := range strings.Lines(src) {
		if !strings.Contains(line, "SUBLET_") && !strings.Contains(line, "CRI_") {
			continue
		}
		for _, name := range variable.FindAllString(line, -1) {
			d.variables[name] = true
		}
	}
}

// add adds the declarations of a file.
func (d *docTree) add(dir string, file *ast.File) {
	pkg := file.Name.Name + "."
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			switch {
			case decl.Recv != nil:
				d.exported[pkg+typeName(decl.Recv.List[0].Type)+"."+decl.Name.Name] = true
			case testName.MatchString(decl.Name.Name):
				d.tests[decl.Name.Name] = true
				d.testsIn[dir] = append(d.testsIn[dir], decl.Name.Name)
			default:
				d.exported[pkg+decl.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.addSpec(pkg, spec)
			}
		}
	}
}

func (d *docTree) addSpec(pkg string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			d.exported[pkg+name.Name] = true
		}
	case *ast.TypeSpec:
		name := pkg + spec.Name.Name
		d.exported[name] = true
		var members *ast.FieldList
		switch typ := spec.Type.(type) {
		case *ast.StructType:
			members = typ.Fields
		case *ast.InterfaceType:
			members = typ.Methods
		default:
			return
		}
		for _, field := range members.List {
			for _, member := range field.Names {
				d.exported[name+"."+member.Name] = true
			}
		}
	}
}

// typeName returns the name of the type of a receiver.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}
