package problem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/problem"
)

// codeLike matches a code, unlike other values of fields and variables that are called code.
var codeLike = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)

// codePrefix matches the first part of a code that is composed at run time.
var codePrefix = regexp.MustCompile(`^[A-Z][A-Z0-9]*_?$`)

// scanner collects the codes that Go source reports, from the places that have a problem's code: the field Code of any
// literal, any text in a literal without field names, a variable or field called code, an argument for a parameter
// called code, and the result of a function whose name ends in Code.
type scanner struct {
	consts map[string]string // of all packages, by name: offer.MIGEmpty is used as MIGEmpty
	takes  map[string][]int  // functions by name: the positions of the parameter called code in any of them
	found  map[string]string // code to source position
	// made are the prefixes of codes that are composed at run time, such as "MIG_".
	made map[string]string
	// enums are the string values of constants, by the name of their type.
	enums map[string][]string
}

// scan reads all files that are not tests below the given folders.
func scan(t *testing.T, files map[string]*ast.File, set *token.FileSet) *scanner {
	t.Helper()
	s := &scanner{consts: map[string]string{}, takes: map[string][]int{}, found: map[string]string{}, made: map[string]string{}, enums: map[string][]string{}}
	for _, file := range files {
		ast.Inspect(file, s.declarations)
	}
	for path, file := range files {
		where := func(n ast.Node) string { return path + ":" + strconv.Itoa(set.Position(n.Pos()).Line) }
		ast.Inspect(file, func(n ast.Node) bool {
			s.uses(n, where)
			return true
		})
	}
	return s
}

func (s *scanner) declarations(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		s.takesCode(n.Name.Name, n.Type)
	case *ast.Field:
		if of, ok := n.Type.(*ast.FuncType); ok {
			for _, name := range n.Names {
				s.takesCode(name.Name, of)
			}
		}
	case *ast.GenDecl:
		if n.Tok != token.CONST {
			return true
		}
		for _, spec := range n.Specs {
			value := spec.(*ast.ValueSpec)
			for i, name := range value.Names {
				if i >= len(value.Values) {
					continue
				}
				text, ok := literal(value.Values[i])
				if !ok {
					continue
				}
				if codeLike.MatchString(text) {
					s.consts[name.Name] = text
				}
				if kind, ok := value.Type.(*ast.Ident); ok {
					s.enums[kind.Name] = append(s.enums[kind.Name], text)
				}
			}
		}
	}
	return true
}

// takesCode records the position of the parameter called code of a function, or of a field that holds one.
func (s *scanner) takesCode(name string, of *ast.FuncType) {
	if at := position(of); at >= 0 && !slices.Contains(s.takes[name], at) {
		s.takes[name] = append(s.takes[name], at)
	}
}

// position returns the position of the parameter called code, or -1.
func position(of *ast.FuncType) int {
	at := 0
	for _, field := range of.Params.List {
		for _, name := range field.Names {
			if name.Name == "code" {
				return at
			}
			at++
		}
	}
	return -1
}

func (s *scanner) uses(n ast.Node, where func(ast.Node) string) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if strings.HasSuffix(n.Name.Name, "Code") && n.Body != nil {
			ast.Inspect(n.Body, func(inner ast.Node) bool {
				if back, ok := inner.(*ast.ReturnStmt); ok && len(back.Results) > 0 {
					s.take(back.Results[0], where)
				}
				return true
			})
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && (strings.HasSuffix(key.Name, "Code") || key.Name == "code") {
			s.take(n.Value, where)
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if i < len(n.Rhs) && isCode(left) {
				s.take(n.Rhs[i], where)
			}
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) && name.Name == "code" {
				s.take(n.Values[i], where)
			}
		}
	case *ast.CallExpr:
		for _, at := range s.takes[called(n.Fun)] {
			if at < len(n.Args) {
				s.take(n.Args[at], where)
			}
		}
	case *ast.CompositeLit:
		// A literal without field names, as of offer.refusal and cdi.feature.
		for _, element := range n.Elts {
			switch element := element.(type) {
			case *ast.BasicLit, *ast.Ident:
				if text, ok := literal(element); ok && !strings.Contains(text, "_") {
					continue // A word in capitals, such as a column header.
				}
				s.take(element, where)
			}
		}
	}
}

func isCode(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "code"
	case *ast.SelectorExpr:
		return e.Sel.Name == "Code" || e.Sel.Name == "code"
	}
	return false
}

func called(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// take records the codes in an expression that is in a code's place.
func (s *scanner) take(e ast.Expr, where func(ast.Node) string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, ok := literal(e); ok && codeLike.MatchString(text) {
			s.found[text] = where(e)
		}
	case *ast.Ident:
		if text, ok := s.consts[e.Name]; ok {
			s.found[text] = where(e)
		}
	case *ast.SelectorExpr:
		s.take(e.Sel, where)
	case *ast.BinaryExpr:
		if text, ok := literal(e.X); ok && e.Op == token.ADD && codePrefix.MatchString(text) {
			s.made[text] = where(e)
		}
	}
}

// parseTree parses the Go files below internal that are not tests, except the simulator, which reports no problems, and
// this package.
func parseTree(t *testing.T) (map[string]*ast.File, *token.FileSet) {
	t.Helper()
	files, set := map[string]*ast.File{}, token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "testdata" || path == "../../hardware/sim" || path == "../../core/problem" || path == "../../core/trace") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		files[path] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, set
}

// TestCatalogueIsComplete checks that each code that the source reports is in the catalogue, and that the source
// reports each code of the catalogue.
func TestCatalogueIsComplete(t *testing.T) {
	files, set := parseTree(t)
	s := scan(t, files, set)
	if len(s.found) < 40 {
		t.Fatalf("only %d codes found in the source: the scan misses codes", len(s.found))
	}
	// Codes that are composed at run time: the prefix with the states of a MIG change.
	states := s.enums["State"]
	for code, where := range s.found {
		if _, ok := problem.Find(code); !ok && !notACode(code) {
			t.Errorf("%s reports %s, which is not in the catalogue", where, code)
		}
	}
	for prefix, where := range s.made {
		if prefix != "MIG_" && prefix != "XID" {
			t.Errorf("%s composes codes that begin with %q, and this test does not list their endings", where, prefix)
		}
	}
	for _, p := range problem.All() {
		if s.raises(p.Code, states) {
			continue
		}
		t.Errorf("no source reports %s", p.Code)
	}
}

// notACode are texts in capitals in places that look like a code's: environment variables, names of metrics, compute
// modes.
func notACode(text string) bool {
	for _, prefix := range []string{"NVIDIA_", "CUDA_", "BERTH_", "DCGM_", "GPU_I_", "NVML_FI_", "DP_", "EXCLUSIVE_", "EXAMPLE_", "DEFAULT", "PROHIBITED", "NODE_NAME", "POD_NAME", "POD_UID"} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

func (s *scanner) raises(code string, states []string) bool {
	if _, ok := s.found[code]; ok {
		return true
	}
	if code == problem.XIDPattern {
		_, ok := s.made["XID"]
		return ok
	}
	for prefix := range s.made {
		rest, ok := strings.CutPrefix(code, prefix)
		if ok && slices.ContainsFunc(states, func(state string) bool { return strings.ToUpper(state) == rest }) {
			return true
		}
	}
	return false
}

// TestScanSeesEveryPlace checks that the scan finds a code in every place that can have one.
func TestScanSeesEveryPlace(t *testing.T) {
	tests := map[string]struct {
		source string
		want   []string
	}{
		"field":            {`var x = Cause{Code: "A_B"}`, []string{"A_B"}},
		"field, small":     {`var x = feature{code: "A_B"}`, []string{"A_B"}},
		"no name":          {`var x = refusal{"A_B", "text"}`, []string{"A_B"}},
		"constant":         {`const Bad = "A_B"; var x = Cause{Code: offer.Bad}`, []string{"A_B"}},
		"argument":         {`func say(a int, code, text string) {}; func f() { say(1, "A_B", "C_D") }`, []string{"A_B"}},
		"method":           {`func (t T) say(code string) {}; func f() { t.say("A_B") }`, []string{"A_B"}},
		"variable":         {`func f() { code, verb := "A_B", "C_D"; code = "E_F" }`, []string{"A_B", "E_F"}},
		"var":              {`func f() { var code = "A_B" }`, []string{"A_B"}},
		"field's argument": {`type D struct { Say func(a, code string) }; func f(d D) { d.Say("x", "A_B") }`, []string{"A_B"}},
		"two of a name":    {`func (a A) say(code string) {}; func (b B) say(x, code string) {}; func f() { a.say("A_B"); b.say("x", "C_D") }`, []string{"A_B", "C_D"}},
		"not composed":     {`func say(code string) {}; func f() { say("some text " + x) }`, nil},
		"returned":         {`func badCode() string { return "A_B" }`, []string{"A_B"}},
		"one word":         {`func say(code string) {}; func f() { say("A") }`, []string{"A"}},
		"a column header":  {`var x = []string{"A"}`, nil},
		"something else":   {`func f() { os.Getenv("A_B"); x := "C_D" }`, nil},
		"other case":       {`var x = Cause{Code: "DevicesDiffer"}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, "x.go", "package x\n"+tc.source, 0)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for code := range scan(t, map[string]*ast.File{"x.go": file}, set).found {
				got = append(got, code)
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("found %v, want %v", got, tc.want)
			}
		})
	}
}
