package health

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestClassRows checks that each constant of type Class has one complete row.
func TestClassRows(t *testing.T) {
	if declared, rows := declaredClasses(t), Classes(); !slices.Equal(declared, rows) {
		t.Errorf("classes %v are declared, and have rows %v", declared, rows)
	}
	fixes := map[string]Class{}
	for _, row := range classRows {
		if row.state == "" || row.effect == "" || !slices.Contains([]Severity{Info, Warning, Error}, row.severity) {
			t.Errorf("%s: state %q, severity %q, effect %q", row.class, row.state, row.severity, row.effect)
		}
		if !strings.HasSuffix(row.fix, ".") || len(row.fix) < 20 {
			t.Errorf("%s: fix %q is not a sentence", row.class, row.fix)
		}
		if other, seen := fixes[row.fix]; seen {
			t.Errorf("%s and %s have one fix", other, row.class)
		}
		fixes[row.fix] = row.class
		if repair := row.state == gpu.NeedsReset || row.state == gpu.NeedsReboot; row.needsRepair != repair {
			t.Errorf("%s: state %s, needs repair %v", row.class, row.state, row.needsRepair)
		}
		if row.wholeGPU != (row.needsRepair || row.state == gpu.Draining) {
			t.Errorf("%s: state %s, whole GPU %v", row.class, row.state, row.wholeGPU)
		}
	}
}

// TestUnknownClass checks that a class of another version requires inspection.
func TestUnknownClass(t *testing.T) {
	if class := Class("of another version"); class.state() != Inspect.state() || class.Fix() != Inspect.Fix() || class.known() || Class("").known() {
		t.Errorf("state %s, fix %q, known %v", class.state(), class.Fix(), class.known())
	}
}

// declaredClasses returns the constants of type Class in the order of their declarations.
func declaredClasses(t *testing.T) []Class {
	file, err := parser.ParseFile(token.NewFileSet(), "class.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var classes []Class
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); !ok || name.Name != "Class" {
			return true
		}
		for _, value := range spec.Values {
			text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			classes = append(classes, Class(text))
		}
		return true
	})
	return classes
}
