package berth_test

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

const module = "github.com/berth-gpu/berth"

// pure rooms hold the hard thinking: they import the standard library and each
// other, nothing else, so that their tests need no machine and no cluster.
var pure = []string{"gpu", "mig", "placement", "health", "trace", "spelling", "problem"}

// frontEnds speak one kubelet API each; what they share lives in the ledger.
var frontEnds = []string{"deviceplugin", "dra"}

// wiring may import every room.
var wiring = []string{"agent", "scheduler", "operator", "cli"}

// room is the first folder below internal/, or the path itself elsewhere.
func room(path string) string {
	rest, ok := strings.CutPrefix(path, module+"/internal/")
	if !ok {
		return strings.TrimPrefix(path, module+"/")
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

func load(t *testing.T, mode packages.LoadMode, patterns ...string) []*packages.Package {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Mode: mode}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			t.Errorf("load %s: %v", p.PkgPath, e)
		}
	}
	if len(loaded) == 0 {
		t.Fatalf("no package matches %v", patterns)
	}
	return loaded
}

// breaches says which import rule of docs/architecture.md the import of target by source breaks.
func breaches(source, target string) string {
	from, to := room(source), room(target)
	standard := !strings.Contains(strings.Split(target, "/")[0], ".")
	inHouse := strings.HasPrefix(target, module+"/")
	switch {
	case slices.Contains(pure, from) && !standard && !(inHouse && slices.Contains(pure, to)):
		return "a pure room imports the standard library and other pure rooms only"
	case from == "vendors" && (strings.HasPrefix(target, "k8s.io/") || strings.HasPrefix(target, "sigs.k8s.io/")):
		return "a vendor adapter knows its hardware and no Kubernetes"
	case from == "vendors" && inHouse && to != "vendors" && !slices.Contains(pure, to):
		return "a vendor adapter imports no other room than the pure ones"
	case slices.Contains(frontEnds, from) && slices.Contains(frontEnds, to) && from != to:
		return "front ends never import one another"
	case inHouse && slices.Contains(wiring, to) && from != to && !strings.HasPrefix(from, "cmd/"):
		return "only programs import the wiring rooms"
	case target == "os/exec" && !strings.HasPrefix(source, module+"/internal/vendors/nvidia/smi") && from != "mps":
		return "os/exec is for nvidia-smi and the MPS supervisor"
	case target == "log" || target == "github.com/sirupsen/logrus":
		return "log/slog is the one logger"
	}
	return ""
}

func TestImportRules(t *testing.T) {
	for _, p := range load(t, packages.NeedName|packages.NeedImports, "./...") {
		for target := range p.Imports {
			if why := breaches(p.PkgPath, target); why != "" {
				t.Errorf("%s imports %s: %s", p.PkgPath, target, why)
			}
		}
	}
}

// TestImportRulesCatchBreaches proves that the rules above can fail.
func TestImportRulesCatchBreaches(t *testing.T) {
	tests := map[string]struct {
		source, target string
		want           bool
	}{
		"pure room and Kubernetes":    {"internal/core/placement", "k8s.io/api/core/v1", true},
		"pure room and an edge":       {"internal/core/trace", module + "/internal/kubelet", true},
		"pure room and a pure room":   {"internal/core/trace", module + "/internal/gpu", false},
		"pure room and the library":   {"internal/core/health", "time", false},
		"adapter and Kubernetes":      {"internal/hardware/nvidia", "k8s.io/client-go/rest", true},
		"adapter and NVML":            {"internal/hardware/nvidia", "github.com/NVIDIA/go-nvml/pkg/nvml", false},
		"adapter and the inventory":   {"internal/hardware/nvidia", module + "/internal/inventory", true},
		"front end and front end":     {"internal/node/deviceplugin", module + "/internal/dra", true},
		"edge and the agent":          {"internal/node/ledger", module + "/internal/agent", true},
		"program and the agent":       {"cmd/berth-agent", module + "/internal/agent", false},
		"exec in the device plugin":   {"internal/node/deviceplugin", "os/exec", true},
		"exec in the MPS supervisor":  {"internal/node/mps", "os/exec", false},
		"exec beside nvidia-smi":      {"internal/hardware/nvidia/smi", "os/exec", false},
		"the old logger":              {"internal/node/agent", "log", true},
		"front end and its own parts": {"internal/node/deviceplugin", module + "/internal/deviceplugin/wire", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := breaches(module+"/"+tc.source, tc.target); (got != "") != tc.want {
				t.Errorf("breaches(%s, %s) = %q, want a breach: %v", tc.source, tc.target, got, tc.want)
			}
		})
	}
}

// TestAgentLinksNoHeavyLibraries keeps the privileged program small: what it
// links, it must be trusted with.
func TestAgentLinksNoHeavyLibraries(t *testing.T) {
	loaded := load(t, packages.NeedName|packages.NeedImports|packages.NeedDeps, "./cmd/berth-agent")
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, banned := range []string{"k8s.io/kubernetes/", "sigs.k8s.io/controller-runtime"} {
			if strings.HasPrefix(p.PkgPath, banned) {
				t.Errorf("berth-agent links %s", p.PkgPath)
			}
		}
	})
}

// goFiles lists the Go files of both modules.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "bin" || name == "testdata" || name != "." && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestEveryPackageHasAComment: a package says what it guarantees before one reads its code.
func TestEveryPackageHasAComment(t *testing.T) {
	commented := map[string]bool{}
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		commented[filepath.Dir(path)] = commented[filepath.Dir(path)] || says(file)
	}
	for folder, ok := range commented {
		if !ok {
			t.Errorf("%s has no package comment", folder)
		}
	}
}

func says(file *ast.File) bool {
	if file.Doc == nil {
		return false
	}
	text := file.Doc.Text()
	return strings.HasPrefix(text, "Package "+file.Name.Name) || file.Name.Name == "main" && strings.HasPrefix(text, "Command ")
}

// TestFilesStayReadable: a file over 500 lines, or a main over 60, holds more than one thing.
func TestFilesStayReadable(t *testing.T) {
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(filepath.Base(path), "zz_generated") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		limit := 500
		if filepath.Base(path) == "main.go" && strings.Contains(path, "cmd/") {
			limit = 60
		}
		if lines := strings.Count(string(text), "\n"); lines > limit {
			t.Errorf("%s has %d lines, want at most %d", path, lines, limit)
		}
	}
}
