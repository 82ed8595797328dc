package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGeneratedIsCurrent fails when go generate must run again, after an update of go-nvml or a newly simulated call.
func TestGeneratedIsCurrent(t *testing.T) {
	library := filepath.Join("..", "..", "libnvml")
	files, err := generate(library, filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(library, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%s is not what go generate writes; run: go generate ./internal/hardware/sim/libnvml", name)
		}
	}
}

// TestShapes checks the generated code for each form of a function's parameters.
func TestShapes(t *testing.T) {
	simulated := map[string]bool{"GetName": true, "GetMemoryInfo_v2": true, "GetRemappedRows": true, "GetCount": true, "DeviceGetCount": true, "GetGpuInstances": true}
	device := param{base: "nvmlDevice_t"}
	tests := map[string]struct {
		function function
		want     string // part of the method; empty for none
	}{
		"string": {function{"nvmlDeviceGetName", []param{device, {base: "char", stars: 1}, {base: "unsigned int"}}}, "c.putText(1, r0, c.number(2))"},
		"struct with a version": {function{"nvmlDeviceGetMemoryInfo_v2", []param{device, {base: "nvmlMemory_v2_t", stars: 1}}},
			"if !versioned[nvml.Memory_v2](c, 1, 2)"},
		"first version":         {function{"nvmlDeviceGetCount_v2", []param{{base: "unsigned int", stars: 1}}}, "c.library().DeviceGetCount()"},
		"other parameters":      {function{"nvmlDeviceGetRemappedRows_v2", []param{device, {base: "nvmlRemappedRowsInfo_v2_t", stars: 1}}}, ""},
		"array":                 {function{"nvmlDeviceGetGpuInstances", []param{device, {base: "unsigned int"}, {base: "nvmlGpuInstance_t", stars: 1}, {base: "unsigned int", stars: 1}}}, ""},
		"what is not simulated": {function{"nvmlDeviceGetSerial", []param{device, {base: "char", stars: 1}, {base: "unsigned int"}}}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := regular(tc.function, simulated)
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want it to contain %q", got, tc.want)
			}
		})
	}
}
