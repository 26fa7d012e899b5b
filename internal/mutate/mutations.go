package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

// visit plants the mutants of one node: conditions negated, operands dropped, boundaries moved,
// sums turned into differences, statements deleted, errors and results returned as
// zero. It returns whether the node's children are visited.
func (s *source) visit(n ast.Node, stack []ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.CallExpr:
		return !isLogging(n)
	case *ast.IfStmt:
		s.negate(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			s.force(n.Cond, "loop never entered", "(!mutantOn(%d) && (%s))")
		}
	case *ast.CaseClause:
		s.caseClause(n, stack)
	case *ast.BinaryExpr:
		s.binary(n, stack)
	case *ast.ReturnStmt:
		s.results(n)
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.AssignStmt, *ast.SendStmt:
		s.statement(n.(ast.Stmt), stack) //nolint:errcheck // each of the four is one
	}
	return true
}

func (s *source) force(n ast.Expr, what, format string) {
	s.add(n, what, func(id int, inner func(ast.Node) string) string { return fmt.Sprintf(format, id, inner(n)) })
}

func (s *source) negate(n ast.Expr) { s.force(n, "negate", "(mutantOn(%d) != bool(%s))") }

// caseClause makes the cases of a switch without a tag false.
func (s *source) caseClause(c *ast.CaseClause, stack []ast.Node) {
	if len(stack) < 2 {
		return
	}
	if sw, ok := stack[len(stack)-2].(*ast.SwitchStmt); ok && sw.Tag == nil {
		for _, e := range c.List {
			s.force(e, "drop case", "(!mutantOn(%d) && (%s))")
		}
	}
}

var boundaries = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"} //nolint:gochecknoglobals // a constant table

func (s *source) binary(b *ast.BinaryExpr, stack []ast.Node) {
	switch b.Op {
	case token.LAND, token.LOR:
		drop := map[token.Token]string{token.LAND: "(mutantOn(%d) || (%s))", token.LOR: "(!mutantOn(%d) && (%s))"}[b.Op]
		for _, x := range []ast.Expr{b.X, b.Y} {
			if inner, ok := x.(*ast.BinaryExpr); !ok || inner.Op != b.Op {
				s.force(x, "drop operand of "+b.Op.String(), drop)
			}
		}
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		s.add(b, b.Op.String()+" becomes "+boundaries[b.Op], func(id int, inner func(ast.Node) string) string {
			x, y := inner(b.X), inner(b.Y)
			return fmt.Sprintf("(mutantOn(%d) && (%s %s %s) || !mutantOn(%d) && (%s %s %s))", id, x, boundaries[b.Op], y, id, x, b.Op, y)
		})
	case token.EQL, token.NEQ:
		if !isCondition(stack) {
			s.negate(b)
		}
	case token.ADD, token.SUB:
		if isText(b.X) || isText(b.Y) {
			return
		}
		other := map[token.Token]string{token.ADD: "-", token.SUB: "+"}[b.Op]
		s.add(b, b.Op.String()+" becomes "+other, func(id int, inner func(ast.Node) string) string {
			x, y := inner(b.X), inner(b.Y)
			return fmt.Sprintf("mutantPick(%d, (%s %s %s), (%s %s %s))", id, x, b.Op, y, x, other, y)
		})
	default:
	}
}

// isCondition reports whether the node below this stack is a condition or an operand of one, which has its own mutants.
func isCondition(stack []ast.Node) bool {
	switch p := stack[len(stack)-1].(type) {
	case *ast.IfStmt, *ast.ForStmt, *ast.CaseClause:
		return true
	case *ast.BinaryExpr:
		return p.Op == token.LAND || p.Op == token.LOR
	}
	return false
}

func isText(n ast.Expr) bool {
	switch n := n.(type) {
	case *ast.BasicLit:
		return n.Kind == token.STRING
	case *ast.BinaryExpr:
		return isText(n.X) || isText(n.Y)
	}
	return false
}

// results returns the zero value for a result that is more than a constant, and the
// other one for true and false.
func (s *source) results(r *ast.ReturnStmt) {
	for _, x := range r.Results {
		switch x := x.(type) {
		case *ast.Ident:
			switch x.Name {
			case "nil":
			case "true", "false":
				s.negate(x)
			default:
				s.zero(x)
			}
		case *ast.CompositeLit:
			if _, isNamed := x.Type.(*ast.Ident); len(x.Elts) > 0 || !isNamed { // T{} is the zero value already
				s.zero(x)
			}
		case *ast.SelectorExpr, *ast.UnaryExpr:
			s.zero(x)
		case *ast.CallExpr:
			if len(r.Results) > 1 || returnsError(x) {
				s.zero(x)
			}
		}
	}
}

func (s *source) zero(x ast.Expr) { s.force(x, "return zero value", "mutantZero(%d, %s)") }

// returnsError reports whether a call surely has an error as its one result, and is no tuple.
func returnsError(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && (pkg.Name == "errors" || pkg.Name == "fmt" && f.Sel.Name == "Errorf")
}

// statement deletes a statement of a block.
func (s *source) statement(n ast.Stmt, stack []ast.Node) {
	switch stack[len(stack)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause:
	default:
		return
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE || isBlank(n.Lhs) {
			return
		}
	case *ast.ExprStmt:
		if c, ok := n.X.(*ast.CallExpr); !ok || isLogging(c) || isSynchronization(c) {
			return
		}
	}
	s.add(n, "delete statement", func(id int, inner func(ast.Node) string) string {
		return fmt.Sprintf("if !mutantOn(%d) { %s }", id, inner(n))
	})
}

func isBlank(left []ast.Expr) bool {
	for _, x := range left {
		if id, ok := x.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// isLogging reports calls whose loss no test needs to notice: of a logger, and panics.
func isLogging(c *ast.CallExpr) bool {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		switch f.Sel.Name {
		case "Debug", "Info", "Warn", "Error", "LogAttrs", "Log", "DebugContext", "InfoContext", "WarnContext", "ErrorContext":
			return len(c.Args) > 0
		}
		pkg, ok := f.X.(*ast.Ident)
		return ok && pkg.Name == "slog"
	case *ast.Ident:
		return f.Name == "panic"
	}
	return false
}

// isSynchronization reports calls whose loss hangs or races, which says nothing of the tests.
func isSynchronization(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	return ok && (strings.HasSuffix(f.Sel.Name, "Lock") || f.Sel.Name == "Wait" || f.Sel.Name == "Done")
}
