package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("# a comment\n\na pod has an address: it has none: yet\n"), 0o600))
	invalid := filepath.Join(t.TempDir(), "invalid")
	require.NoError(t, os.WriteFile(invalid, []byte("no reason\n"), 0o600))
	credentials := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(credentials, []byte("reader:pass:word\n"), 0o600))
	const endpoint = "-endpoint=unix:///s"

	tests := map[string]struct {
		args []string
		env  map[string]string
		want int // options of the suite
		err  string
	}{
		"an endpoint is enough":                          {[]string{endpoint}, nil, 3, ""},
		"a path is an endpoint":                          {[]string{"-endpoint=/run/my.sock"}, nil, 3, ""},
		"an endpoint is required":                        {nil, nil, 0, "-endpoint required"},
		"a name is no endpoint":                          {[]string{"-endpoint=containerd"}, nil, 0, `-endpoint "containerd": must be an address`},
		"released runtimes can be unknown":               {[]string{endpoint, "-known-runtimes=false"}, nil, 2, ""},
		"every flag is an option":                        {[]string{endpoint, "-image=a", "-second-image=b", "-log-root=/l", "-cgroup-parent=/p", "-restart=true", "-run=pod"}, nil, 9, ""},
		"a private image has credentials":                {[]string{endpoint, "-private-image=p", "-private-image-credentials=" + credentials, "-cdi-spec-dir=/c"}, nil, 5, ""},
		"a private image needs credentials":              {[]string{endpoint, "-private-image=p"}, nil, 0, "both required"},
		"credentials need a private image":               {[]string{endpoint, "-private-image-credentials=" + credentials}, nil, 0, "both required"},
		"credentials that do not exist are an error":     {[]string{endpoint, "-private-image=p", "-private-image-credentials=/no/such/file"}, nil, 0, "-private-image-credentials: open /no/such/file"},
		"credentials without a password are an error":    {[]string{endpoint, "-private-image=p", "-private-image-credentials=" + invalid}, nil, 0, `must have a line "username:password"`},
		"a variable is a flag":                           {nil, map[string]string{"CRI_ENDPOINT": "unix:///s", "CRI_SECOND_IMAGE": "b", "CRI_LARGE_LIST_SIZE": "7"}, 4, ""},
		"an empty variable is none":                      {[]string{endpoint}, map[string]string{"CRI_IMAGE": "", "CRI_WITHOUT": ""}, 3, ""},
		"an invalid variable is an error":                {[]string{endpoint}, map[string]string{"CRI_PARALLEL": "many"}, 0, `CRI_PARALLEL: invalid value "many"`},
		"each missing ability is an option":              {[]string{endpoint, "-without=processes,limits, isolation,confinement,host-ports"}, nil, 8, ""},
		"an ability that does not exist is an error":     {[]string{endpoint, "-without=limit"}, nil, 0, `-without: invalid value "limit"`},
		"lists of known failures are read":               {[]string{endpoint, "-known-failures=" + list, "-known-flakes=" + list}, nil, 5, ""},
		"a list that does not exist is an error":         {[]string{endpoint, "-known-failures=/no/such/file"}, nil, 0, "-known-failures: open /no/such/file"},
		"a line without a reason is an error":            {[]string{endpoint, "-known-flakes=" + invalid}, nil, 0, `invalid line "no reason"`},
		"all errors are collected":                       {[]string{endpoint, "-known-flakes=" + invalid, "-without=x,y"}, nil, 0, `invalid value "y"`},
		"an invalid expression is an error":              {[]string{endpoint, "-run=("}, nil, 0, "missing closing"},
		"an expression that selects no case is an error": {[]string{endpoint, "-run=^a pdo"}, nil, 0, `-run "^a pdo": no case has such a name`},
		"a report of two runtimes is an error":           {[]string{endpoint, endpoint, "-json=f"}, nil, 0, "-json: a report has one runtime"},
		"two reports on the standard output are none":    {[]string{endpoint, "-json=-", "-junit=-"}, nil, 0, "only one of"},
		"without cases at a time nothing can be run":     {[]string{endpoint, "-parallel=0"}, nil, 0, "must be positive"},
		"saved reports need no endpoint":                 {[]string{"a.json", "b.json"}, nil, 3, ""},
		"saved reports are not tested by a variable":     {[]string{"a.json"}, map[string]string{"CRI_ENDPOINT": "unix:///s"}, 3, ""},
		"an unknown flag is an error":                    {[]string{"-sock=/s"}, nil, 0, "not defined"},
		"the names of cases are listed without runtime":  {[]string{"-list"}, nil, 3, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s, err := parse(tc.args, func(name string) string { return tc.env[name] }, &out)
			assert.Empty(t, out.String(), "run prints the error, once")
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			opts, err := s.options()
			require.NoError(t, err)
			assert.Len(t, opts, tc.want)
			if strings.HasPrefix(name, "saved reports") {
				assert.Empty(t, s.endpoints)
			}
		})
	}

	reasons, err := readReasons(list)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a pod has an address": "it has none: yet"}, reasons)
}

// TestParse_HasAFlagForEveryOption compares the options of package runtimetest with what
// the flags use of them.
func TestParse_HasAFlagForEveryOption(t *testing.T) {
	used := map[string]bool{}
	each(t, ".", func(n ast.Node) {
		if s, ok := n.(*ast.SelectorExpr); ok {
			used[s.Sel.Name] = true
		}
	})
	options := map[string]bool{}
	each(t, "../../runtime/runtimetest", func(n ast.Node) {
		f, ok := n.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !f.Name.IsExported() || f.Type.Results.NumFields() != 1 {
			return
		}
		if result, ok := f.Type.Results.List[0].Type.(*ast.Ident); ok && result.Name == "Option" {
			options[f.Name.Name] = true
		}
	})
	require.Greater(t, len(options), 10)
	delete(options, "OnReport") // Run returns the report
	for _, name := range slices.Sorted(maps.Keys(options)) {
		assert.True(t, used[name], "the command has no flag for runtimetest.%s", name)
	}
}

// each calls f with each node of the files of a package.
func each(t *testing.T, dir string, f func(ast.Node)) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if n != nil {
				f(n)
			}
			return true
		})
	}
}
