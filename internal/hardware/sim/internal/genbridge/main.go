// Command genbridge writes the C bridge of the simulated libnvidia-ml: zz_generated.symbols.c with every function that nvml.h
// declares, under its real name, and zz_generated.calls.go, which passes those that are simulated to nvml.Interface.
// The others return NOT_SUPPORTED, or what a broken GPU returns.
//
// Functions of a regular shape are generated: each result of the Go method is a pointer of the C function, in order. The others are
// written by hand, as methods of the type call with the name of the C function.
//
// It must not be imported; go generate runs it. nvml.h is read in the folder of the go-nvml module.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(".", ".."); err != nil {
		fmt.Fprintln(os.Stderr, "generate the NVML bridge:", err)
		os.Exit(1)
	}
}

// run writes the files of the bridge in library; simulator is the folder of package sim.
func run(library, simulator string) error {
	files, err := generate(library, simulator)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(library, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the generated files by name.
func generate(library, simulator string) (map[string][]byte, error) {
	header, err := headerFile()
	if err != nil {
		return nil, err
	}
	functions, err := readHeader(header)
	if err != nil {
		return nil, err
	}
	written, err := methods(library, "call")
	if err != nil {
		return nil, err
	}
	simulated, err := methods(simulator, "device", "migHandle", "library", "instance", "compute", "eventSet", "gpmSample")
	if err != nil {
		return nil, err
	}
	calls, err := writeCalls(functions, written, simulated)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"zz_generated.symbols.c": writeSymbols(functions), "zz_generated.calls.go": calls}, nil
}

// headerFile returns the path of nvml.h.
func headerFile() (string, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml/pkg/nvml").Output()
	if err != nil {
		return "", fmt.Errorf("find go-nvml: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), "nvml.h"), nil
}
