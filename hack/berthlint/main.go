// Command berthlint runs staticcheck's checks and the following ones over one load of the packages:
//
//	errorlint   errors that are compared with == or asserted, which misses a wrapped error
//	gocyclo     functions with more than 15 independent paths
//	sloglint    log messages that are not constant, keys that are not in camelCase, the global logger
//	modernize   code for which the language or the standard library has a shorter form
//
// staticcheck.conf chooses the checks, and "//lint:ignore CHECK REASON" exempts a line. The module is separate so that
// no program's go.mod names what only this command links. hack/lint.sh runs it.
package main

import (
	"go/ast"
	"go/token"
	"os"
	"strings"

	"github.com/polyfloyd/go-errorlint/errorlint"
	"go-simpler.org/sloglint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/modernize"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	cmd := lintcmd.NewCommand("berthlint")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	cmd.AddAnalyzers(further()...)
	cmd.Run()
}

// further returns the analyzers that are not staticcheck's.
func further() []*lint.Analyzer {
	analyzers := []*analysis.Analyzer{
		complexity(),
		errorlint.NewAnalyzer(),
		sloglint.New(&sloglint.Options{NoMixedArguments: true, StaticMessage: true, KeyNamingCase: "camel", NoGlobalLogger: "all"}),
	}
	for _, a := range modernize.Suite {
		// A text of a few pieces is easier to read as a concatenation.
		if a != modernize.StringsBuilderAnalyzer {
			analyzers = append(analyzers, a)
		}
	}
	var wrapped []*lint.Analyzer
	for _, a := range analyzers {
		title, _, _ := strings.Cut(a.Doc, "\n")
		wrapped = append(wrapped, &lint.Analyzer{Analyzer: adapt(a), Doc: &lint.RawDocumentation{Title: title, Severity: lint.SeverityWarning}})
	}
	return wrapped
}

// adapt leaves out generated files, and sets the module, which staticcheck's driver leaves nil and sloglint reads.
func adapt(a *analysis.Analyzer) *analysis.Analyzer {
	adapted := *a
	adapted.Run = func(pass *analysis.Pass) (any, error) {
		own := *pass
		if own.Module == nil {
			own.Module = &analysis.Module{}
		}
		own.Report = func(d analysis.Diagnostic) {
			if !generated(pass.Files, d.Pos) {
				pass.Report(d)
			}
		}
		return a.Run(&own)
	}
	return &adapted
}

func generated(files []*ast.File, at token.Pos) bool {
	for _, file := range files {
		if file.FileStart <= at && at < file.FileEnd {
			return ast.IsGenerated(file)
		}
	}
	return false
}
