package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// function is a function of nvml.h that returns nvmlReturn_t.
type function struct {
	name   string
	params []param
}

// param is a parameter of a function: its type without qualifiers and stars, and the number of its stars.
type param struct {
	base  string
	stars int
	// read is true for a pointer to const.
	read bool
	name string
}

// readHeader returns the functions of nvml.h in their order.
func readHeader(path string) ([]function, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`).ReplaceAllString(string(content), "")
	var functions []function
	for _, found := range regexp.MustCompile(`nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;`).FindAllStringSubmatch(text, -1) {
		f := function{name: found[1]}
		for one := range strings.SplitSeq(found[2], ",") {
			if one = strings.TrimSpace(one); one == "" || one == "void" {
				continue
			}
			f.params = append(f.params, readParam(one))
		}
		functions = append(functions, f)
	}
	if len(functions) < 400 {
		return nil, fmt.Errorf("%s declares %d functions, want more than 400: has its form changed?", path, len(functions))
	}
	return functions, nil
}

func readParam(text string) param {
	p := param{stars: strings.Count(text, "*") + strings.Count(text, "["), read: strings.Contains(text, "const ")}
	words := strings.Fields(regexp.MustCompile(`\bconst\b|\bstruct\b|\*|\[[^\]]*\]`).ReplaceAllString(text, " "))
	p.base, p.name = strings.Join(words[:len(words)-1], " "), words[len(words)-1]
	return p
}

// handle reports whether a type of nvml.h is a handle, and returns the name of its interface in go-nvml.
func handle(base string) string {
	switch base {
	case "nvmlDevice_t":
		return "Device"
	case "nvmlGpuInstance_t":
		return "GpuInstance"
	case "nvmlComputeInstance_t":
		return "ComputeInstance"
	case "nvmlEventSet_t":
		return "EventSet"
	case "nvmlGpmSample_t":
		return "GpmSample"
	}
	return ""
}

// pointer reports whether a value of that type is an address: pointers and handles.
func (p param) pointer() bool {
	return p.stars > 0 || handle(p.base) != "" || p.base == "nvmlUnit_t"
}

// methods returns the names of the methods of types in the hand-written Go files of a folder.
func methods(folder string, types ...string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "zz_") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declared := range parsed.Decls {
			method, ok := declared.(*ast.FuncDecl)
			if !ok || method.Recv == nil {
				continue
			}
			of := method.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			for _, name := range types {
				if ident, ok := of.(*ast.Ident); ok && ident.Name == name {
					found[method.Name.Name] = true
				}
			}
		}
	}
	return found, nil
}
