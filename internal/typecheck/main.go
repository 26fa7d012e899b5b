// Typecheck reports whether packages and their tests compile for another system, as far as types decide it:
//
//	go run ./internal/typecheck -goos darwin -goarch arm64 ./...
//
// It reads all dependencies from source and compiles none, which takes seconds where a first go vet or go build for a system takes minutes.
// Assembly, the linker and cgo are out of its scope: packages are taken as with CGO_ENABLED=0. With -test=false it leaves out tests.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	goos := flag.String("goos", build.Default.GOOS, "operating system")
	goarch := flag.String("goarch", build.Default.GOARCH, "architecture")
	tests := flag.Bool("test", true, "check the packages' tests too")
	flag.Parse()
	if err := run(os.Stdout, *goos, *goarch, *tests, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
}

// listed is a package in the output of go list.
type listed struct {
	ImportPath, Dir, Name string
	GoFiles               []string
	ImportMap             map[string]string
	DepOnly               bool
	Module                *struct{ GoVersion string }
	Error                 *struct{ Err string }
}

// run checks the packages that the patterns match, and their tests if tests is true, for a system.
func run(w io.Writer, goos, goarch string, tests bool, patterns []string) error {
	args := append([]string{"list", "-race=false", "-deps", fmt.Sprintf("-test=%t", tests), "-json=ImportPath,Dir,Name,GoFiles,ImportMap,DepOnly,Module,Error"}, patterns...)
	// Without the race detector: GOFLAGS may ask for it, and not every system has it.
	list := exec.Command("go", args...) //nolint:gosec // packages that the user names
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	c := checker{checked: map[string]*types.Package{"unsafe": types.Unsafe}, sizes: types.SizesFor("gc", goarch)}
	decoder := json.NewDecoder(out)
	for {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read the output of go list: %w", err)
		}
		if p.ImportPath != "unsafe" && !strings.HasSuffix(p.ImportPath, ".test") { // not the main programs of tests, which go test writes
			c.check(&p)
		}
	}
	if err := list.Wait(); err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for _, e := range c.errs {
		_, _ = fmt.Fprintln(w, e)
	}
	if n := len(c.errs); n > 0 {
		return fmt.Errorf("%d error(s) for %s/%s", n, goos, goarch)
	}
	_, err = fmt.Fprintf(w, "%s/%s: %d packages\n", goos, goarch, c.n)
	return err
}

// checker checks packages in an order in which each comes after what it imports.
type checker struct {
	checked map[string]*types.Package
	sizes   types.Sizes
	errs    []error
	n       int // packages that were asked for
}

func (c *checker) check(p *listed) {
	if p.Error != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
		return
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			c.errs = append(c.errs, err)
			return
		}
		files = append(files, f)
	}
	conf := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := p.ImportMap[path]; ok {
				path = mapped
			}
			if pkg := c.checked[path]; pkg != nil {
				return pkg, nil
			}
			return nil, fmt.Errorf("package %s is not among the dependencies", path)
		}),
		IgnoreFuncBodies: p.DepOnly,
		Sizes:            c.sizes,
		Error:            func(err error) { c.errs = append(c.errs, err) },
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // without the test that the package was compiled for
	c.checked[p.ImportPath], _ = conf.Check(path, fset, files, nil)
	if !p.DepOnly {
		c.n++
	}
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
