package main

import (
	"go/ast"
	"go/types"
	"strings"

	"github.com/fzipp/gocyclo"
	"golang.org/x/tools/go/analysis"
)

// maxPaths is how many independent paths a function may have.
const maxPaths = 15

// tables are functions that have one case for each of many constants and decide nothing else.
var tables = map[string]bool{
	"gpulabels.family":        true, // compute capability -> name of the architecture
	"metrics.xidMessage":      true, // XID -> NVIDIA's text
	"nvidia.codeName":         true, // NVML return value -> its name
	"sim.snapshot.field":      true, // NVML field -> its value
	"tools.parseSMI":          true, // one case for each option of nvidia-smi
	"tools.mpsDaemon.command": true, // one case for each command of the MPS control daemon
	"workload.run":            true, // one case for each command of the test workload
}

// ceilings are the paths of the functions that had too many when this check was introduced. They may only shrink; a
// function that has become short enough is reported until it is taken off the list.
var ceilings = map[string]int{
	"configwatch.Watcher.first":                 19,
	"deviceplugin.viewer.compose":               18,
	"deviceplugin.groupChooser.chooseOneDaemon": 16,
	"doctor.containerdConfig.read":              16,
	"evidence.API.addWaits":                     17,
	"health.Record.repaired":                    18,
	"image.Read":                                16,
	"kubelet.Container.readSpec":                18,
	"ledger.diff":                               19,
	"migapply.round.consider":                   16,
	"mps.keeper.start":                          16,
	"nvidia.Adapter.identifyMissing":            19,
	"sandbox.Leftovers.clear":                   19,
	"sim.Fault.apply":                           26,
	"sim.Fault.check":                           18,
	"stage.reader.line":                         16,
	"statefile.File[T].decode":                  16,
	"tools.mpsDevices":                          16,
	"trace.joiner.addSharers":                   19,
}

// complexity reports functions with too many independent paths. Tests are left out: each check of a result is a path.
func complexity() *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "gocyclo",
		Doc:  "report functions with more than 15 independent paths",
		Run: func(pass *analysis.Pass) (any, error) {
			for _, file := range pass.Files {
				if strings.HasSuffix(pass.Fset.Position(file.Package).Filename, "_test.go") {
					continue
				}
				for _, declared := range file.Decls {
					f, ok := declared.(*ast.FuncDecl)
					if !ok || tables[fullName(pass.Pkg, f)] {
						continue
					}
					ceiling, listed := ceilings[fullName(pass.Pkg, f)]
					n := gocyclo.Complexity(f)
					switch {
					case listed && n <= maxPaths:
						pass.Reportf(f.Name.Pos(), "%s has %d independent paths: take it off the list of ceilings", f.Name.Name, n)
					case n > max(maxPaths, ceiling):
						pass.Reportf(f.Name.Pos(), "%s has %d independent paths, want at most %d: split it", f.Name.Name, n, max(maxPaths, ceiling))
					}
				}
			}
			return nil, nil
		},
	}
}

// fullName returns package.function or package.Type.method.
func fullName(p *types.Package, f *ast.FuncDecl) string {
	if f.Recv == nil {
		return p.Name() + "." + f.Name.Name
	}
	return p.Name() + "." + strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + f.Name.Name
}
