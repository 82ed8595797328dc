package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// The limits of the agent and of the packages below it. What needs more than that has more than one concern.
const (
	mostLines   = 650
	mostFields  = 12
	mostImports = 12
)

// wires are the packages that may import any number of others, since they decide nothing.
var wires = []string{"internal/node/agent", "internal/node/agent/command"}

// documents are structs that are the form of a JSON document: their fields are published, and no code depends on all of them.
var documents = []string{"serve.DebugState"} // the page /debug/state

// source is a file of the agent or of a package below it that is neither generated nor a test.
type source struct {
	path  string
	lines int
	file  *ast.File
}

// agentSources reads the files of the agent, by package.
func agentSources(t *testing.T) map[string][]source {
	t.Helper()
	sources := map[string][]source{}
	for _, path := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if !below(dir, []string{"internal/node/agent/"}) || strings.HasSuffix(path, "_test.go") || strings.Contains(filepath.Base(path), "zz_generated") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		sources[dir] = append(sources[dir], source{path, strings.Count(string(text), "\n"), file})
	}
	if len(sources) < 20 {
		t.Fatalf("only %d packages of the agent were found", len(sources))
	}
	return sources
}

// TestAgentPackagesStaySmall: the agent only wires, and each package below it has one concern.
func TestAgentPackagesStaySmall(t *testing.T) {
	for dir, files := range agentSources(t) {
		lines, imports := 0, map[string]bool{}
		for _, f := range files {
			lines += f.lines
			for _, i := range f.file.Imports {
				if path := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(path, berth) {
					imports[path] = true
				}
			}
		}
		if lines > mostLines {
			t.Errorf("%s has %d lines without its tests, want at most %d: move a concern into a package of its own", dir, lines, mostLines)
		}
		if len(imports) > mostImports && !slices.Contains(wires, dir) {
			t.Errorf("%s imports %d packages of Berth, want at most %d: it wires, or decides more than one thing", dir, len(imports), mostImports)
		}
	}
}

// TestAgentStructsStaySmall: a struct with many fields is several. Configuration, which is set once and only read, does not count.
func TestAgentStructsStaySmall(t *testing.T) {
	for _, files := range agentSources(t) {
		structs := map[string]*ast.StructType{}
		for _, f := range files {
			ast.Inspect(f.file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok {
					if s, ok := spec.Type.(*ast.StructType); ok {
						structs[spec.Name.Name] = s
					}
				}
				return true
			})
		}
		for name, s := range structs {
			name = files[0].file.Name.Name + "." + name
			if fields := countFields(s, structs, holdsSettings(name)); fields > mostFields && !slices.Contains(documents, name) {
				t.Errorf("struct %s has %d fields that are not configuration, want at most %d", name, fields, mostFields)
			}
		}
	}
}

// holdsSettings tells whether a struct is one in which a package gets its settings: its dependencies, or the flags.
func holdsSettings(name string) bool { return strings.HasSuffix(name, "Deps") || name == "flags.Flags" }

// countFields counts the fields of a struct, without settings if it holds some. The fields of an embedded struct of the package count
// as the struct's own.
func countFields(s *ast.StructType, structs map[string]*ast.StructType, settings bool) int {
	count := 0
	for _, field := range s.Fields.List {
		if name, ok := field.Type.(*ast.Ident); ok && len(field.Names) == 0 && structs[name.Name] != nil {
			count += countFields(structs[name.Name], structs, settings)
		} else if !settings || !isSetting(field.Type) {
			count += max(1, len(field.Names))
		}
	}
	return count
}

// isSetting tells whether a field's type is that of a setting: a plain value, a list of them, a duration, or the exported type of the
// configuration.
func isSetting(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.Ident:
		return slices.Contains([]string{"string", "bool", "int", "uint64", "float64"}, t.Name)
	case *ast.ArrayType:
		return isSetting(t.Elt)
	case *ast.StarExpr:
		return isSetting(t.X)
	case *ast.SelectorExpr:
		pkg, ok := t.X.(*ast.Ident)
		return ok && (pkg.Name == "time" && t.Sel.Name == "Duration" || pkg.Name == "v1alpha1" && t.Sel.Name == "AgentConfig")
	}
	return false
}

// TestCountFields proves that the limit of fields can be broken.
func TestCountFields(t *testing.T) {
	const text = `package p
type part struct { a, b func(); c map[string]int }
type whole struct {
	part
	Name, Dir string
	Interval time.Duration
	List []string
	Config *v1alpha1.AgentConfig
	one, two chan int
	other *part
	sync.Mutex
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	for _, decl := range file.Decls {
		spec := decl.(*ast.GenDecl).Specs[0].(*ast.TypeSpec)
		structs[spec.Name.Name] = spec.Type.(*ast.StructType)
	}
	tests := []struct {
		name     string
		settings bool
		want     int
	}{{"part", true, 3}, {"whole", true, 3 + 2 + 1 + 1}, {"whole", false, 3 + 5 + 2 + 1 + 1}}
	for _, tc := range tests {
		if got := countFields(structs[tc.name], structs, tc.settings); got != tc.want {
			t.Errorf("%s has %d fields, want %d", tc.name, got, tc.want)
		}
	}
}

// TestImportGraphHasNoCycle: the compiler refuses a cycle too; this names the packages of the whole graph in one message.
func TestImportGraphHasNoCycle(t *testing.T) {
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
