package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// mostLines limits a function. Catalogues are data in the form of a function.
const mostLines = 120

var catalogues = []string{"internal/core/problem", "internal/node/metrics/dcgm_xids.go"}

// TestFunctionsStayShort: a longer function does more than one thing.
func TestFunctionsStayShort(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") || slices.Contains(catalogues, path) || slices.Contains(catalogues, filepath.Dir(path)) {
			continue
		}
		positions := token.NewFileSet()
		file := parse(t, positions, path, nil)
		if ast.IsGenerated(file) {
			continue
		}
		for _, decl := range file.Decls {
			f, is := decl.(*ast.FuncDecl)
			if !is {
				continue
			}
			if lines := positions.Position(f.End()).Line - positions.Position(f.Pos()).Line + 1; lines > mostLines {
				t.Errorf("%s: %s has %d lines, want at most %d", path, f.Name.Name, lines, mostLines)
			}
		}
	}
}

// TestOneFieldPerLine: a struct type has one field a line, and in the wiring of the agent each literal over several lines too, so that the
// limit of a file counts what there is.
func TestOneFieldPerLine(t *testing.T) {
	inRepository(t)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		positions := token.NewFileSet()
		file := parse(t, positions, path, nil)
		if ast.IsGenerated(file) {
			continue
		}
		for _, position := range packedFields(positions, file, filepath.Dir(path) == "internal/node/agent") {
			t.Errorf("%s: several fields stand on one line", position)
		}
	}
}

func parse(t *testing.T, positions *token.FileSet, path string, source any) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(positions, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// packedFields returns the positions of fields that share their line with others of a struct type that has a name or spans several lines,
// and with literals also those of keys in struct literals that span several lines.
func packedFields(positions *token.FileSet, file *ast.File, literals bool) (packed []token.Position) {
	named := map[ast.Expr]bool{}
	line := func(at token.Pos) int { return positions.Position(at).Line }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			named[n.Type] = true
		case *ast.StructType:
			if !named[n] && line(n.Fields.Opening) == line(n.Fields.Closing) {
				return true
			}
			last := 0
			for _, field := range n.Fields.List {
				if len(field.Names) > 1 || line(field.Pos()) == last {
					packed = append(packed, positions.Position(field.Pos()))
				}
				last = line(field.End())
			}
		case *ast.CompositeLit:
			if _, keyed := n.Type.(*ast.MapType); keyed || !literals || line(n.Lbrace) == line(n.Rbrace) {
				return true
			}
			last := 0
			for _, element := range n.Elts {
				if _, keyed := element.(*ast.KeyValueExpr); keyed && line(element.Pos()) == last {
					packed = append(packed, positions.Position(element.Pos()))
				}
				last = line(element.End())
			}
		}
		return true
	})
	return packed
}

// TestPackedFields proves that the check above can fail.
func TestPackedFields(t *testing.T) {
	inRepository(t)
	const source = `package p
type a struct {
	x, y int
	z    int
}
type b struct{ x int; y int }
type c struct{ x int }
var d = map[struct{ x, y int }]bool{}
var e = a{x: 1, y: 2}
var f = a{
	x: 1, y: 2,
	z: 3,
}
`
	for literals, want := range map[bool][]int{false: {3, 6}, true: {3, 6, 11}} {
		positions := token.NewFileSet()
		var lines []int
		for _, position := range packedFields(positions, parse(t, positions, "p.go", source), literals) {
			lines = append(lines, position.Line)
		}
		if !slices.Equal(lines, want) {
			t.Errorf("with literals %v: lines %v, want %v", literals, lines, want)
		}
	}
}

// TestImportGraphHasNoCycle: the compiler refuses a cycle too; this names the packages of the whole graph in one message.
func TestImportGraphHasNoCycle(t *testing.T) {
	inRepository(t)
	graph := map[string][]string{}
	for _, p := range load(t, ".", packages.NeedName|packages.NeedImports, "./...") {
		for target := range p.Imports {
			if strings.HasPrefix(target, berth) {
				graph[p.PkgPath] = append(graph[p.PkgPath], target)
			}
		}
	}
	if cycle := findCycle(graph); cycle != nil {
		t.Errorf("import cycle: %s", strings.Join(cycle, " -> "))
	}
	if cycle := findCycle(map[string][]string{"a": {"b", "d"}, "b": {"c"}, "c": {"a"}}); len(cycle) != 4 {
		t.Errorf("a cycle of three packages is reported as %v", cycle)
	}
}

// findCycle returns the packages of a cycle with its first package at both ends; nil when there is none.
func findCycle(graph map[string][]string) []string {
	const visiting, done = 1, 2
	state := map[string]int{}
	var path []string
	var visit func(string) []string
	visit = func(node string) []string {
		switch state[node] {
		case done:
			return nil
		case visiting:
			return append(slices.Clone(path[slices.Index(path, node):]), node)
		}
		state[node] = visiting
		path = append(path, node)
		for _, next := range graph[node] {
			if cycle := visit(next); cycle != nil {
				return cycle
			}
		}
		path = path[:len(path)-1]
		state[node] = done
		return nil
	}
	for node := range graph {
		if cycle := visit(node); cycle != nil {
			return cycle
		}
	}
	return nil
}
