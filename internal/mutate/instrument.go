package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// mutant is one defect that can be switched on.
type mutant struct {
	id     int
	file   string // path of the source file
	line   int    // line in it
	where  string // file:line:col, relative to the package
	what   string // what is done to the text
	text   string // source text concerned, on one line
	tests  []string
	killed bool
}

// edit replaces the text of one node. Its render gets a function that renders a range
// of the original with the edits inside it.
type edit struct {
	start, end int
	render     func(inner func(from, to int) string) string
	nested     []*edit
}

// source collects the edits of one file.
type source struct {
	path    string
	name    string
	text    []byte
	fset    *token.FileSet
	file    *ast.File
	edits   []*edit
	mutants []mutant
	next    func() int
	skipped func(id int) bool
}

func parseSource(path, name string, text []byte, next func() int, skipped func(id int) bool) (*source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, name: name, text: text, fset: fset, file: file, next: next, skipped: skipped}
	ast.PreorderStack(file, nil, s.visit)
	return s, nil
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

// add plants a mutant at a node. wrap gets the mutant's id and the rendered text
// of the node or of what it asks for.
func (s *source) add(n ast.Node, what string, wrap func(id int, inner func(ast.Node) string) string) {
	id := s.next()
	if s.skipped(id) {
		return
	}
	pos := s.fset.Position(n.Pos())
	text := strings.Join(strings.Fields(string(s.text[s.offset(n.Pos()):s.offset(n.End())])), " ")
	if r := []rune(text); len(r) > 100 {
		text = string(r[:100]) + "…"
	}
	s.mutants = append(s.mutants, mutant{
		id: id, file: s.path, line: pos.Line, where: fmt.Sprintf("%s:%d:%d", s.name, pos.Line, pos.Column), what: what, text: text,
	})
	s.edits = append(s.edits, &edit{
		start: s.offset(n.Pos()), end: s.offset(n.End()),
		render: func(inner func(from, to int) string) string {
			return wrap(id, func(n ast.Node) string { return inner(s.offset(n.Pos()), s.offset(n.End())) })
		},
	})
}

// render returns the file with all its mutants, and line directives that keep the
// lines of errors and panics where they were.
func (s *source) render() string {
	// An outer edit comes before those inside it, and of two on one node the earlier is the outer one.
	slices.SortStableFunc(s.edits, func(a, b *edit) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	root := &edit{start: 0, end: len(s.text)}
	stack := []*edit{root}
	for _, e := range s.edits {
		e.nested = nil
		for top := stack[len(stack)-1]; e.start >= top.end; top = stack[len(stack)-1] {
			stack = stack[:len(stack)-1]
		}
		top := stack[len(stack)-1]
		top.nested = append(top.nested, e)
		stack = append(stack, e)
	}
	return fmt.Sprintf("//line %s:1\n", s.path) + s.renderRange(root.nested, 0, len(s.text))
}

func (s *source) renderRange(edits []*edit, from, to int) string {
	var b strings.Builder
	at := from
	for _, e := range edits {
		if e.start < at || e.end > to {
			continue
		}
		b.Write(s.text[at:e.start])
		b.WriteString(e.render(func(from, to int) string { return s.renderRange(e.nested, from, to) }))
		at = e.end
	}
	b.Write(s.text[at:to])
	return b.String()
}
