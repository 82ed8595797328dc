package rules_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// vendorNeutral packages, and files of other packages, work with the GPUs of any vendor: names of a vendor come to them as data
// (gpu.Traits).
var vendorNeutral = []string{
	"internal/node/deviceplugin", "internal/core/trace", "internal/cli/doctor", "internal/node/kubelet", "internal/node/metrics",
	"internal/cli/evidence", "internal/node/gpunode", "internal/node/inventory", "internal/node/allocatable",
	"internal/node/migapply", "internal/node/agent", "internal/node/agent/timeslice", "internal/node/agent/mpssync",
	"internal/node/agent/migsync", "internal/node/configwatch/hardware.go", "internal/node/configwatch/report.go", "internal/node/agent/gpunodesync", "internal/node/agent/command/inspectviews.go",
	"internal/node/agent/metricsync", "internal/node/labels/outputs.go", "internal/node/labels/syncer.go", "internal/node/agent/serve",
}

// vendorNames are what no string and no identifier of these packages contains.
var vendorNames = regexp.MustCompile(`nvidia|NVIDIA|NVML|\bXID|libnvidia`)

// vendorNamesAllowed are the exceptions, by file and pattern of the whole string or identifier.
var vendorNamesAllowed = []struct{ file, pattern, reason string }{
	{"internal/core/trace/evidence.go", `NVML`, "the published name of the source of the hardware's facts in the output of berth trace"},
	{"internal/node/metrics/berth.go", `XIDs that .*|XID`, "the published metric of XIDs"},
	{"internal/node/metrics/dcgm.go", `XIDCount`, "dcgm-exporter's published names, for vendors whose traits say that they have them"},
	{"internal/node/metrics/dcgm_xids.go", `XID|XIDCount|XIDWindow`, "dcgm-exporter's published names, for vendors whose traits say that they have them"},
	{"internal/node/agent/wirenode.go", `XIDs`, "the counts behind the published metric of XIDs"},
	{"internal/node/agent/wirereports.go", `XIDs`, "the counts behind the published metric of XIDs"},
	{"internal/node/agent/agent.go", `XIDs`, "the counts behind the published metric of XIDs"},
	{"internal/node/agent/metricsync/metricsync.go", `XIDs?|XIDCount`, "the counts behind the published metric of XIDs"},
	{"internal/node/agent/metricsync/xids.go", `XIDs?|XIDCount|XIDWindow`, "the counts behind the published metric of XIDs"},
	{"internal/node/metrics/input.go", `XIDs?|XIDCount`, "the count behind the published metric of XIDs"},
}

// vendorNamesIn returns the strings and identifiers of a file that contain a vendor's name.
func vendorNamesIn(t *testing.T, path string, source any) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text := strings.Trim(n.Value, "\"`"); n.Kind == token.STRING && vendorNames.MatchString(text) {
				found = append(found, text)
			}
		case *ast.Ident:
			if vendorNames.MatchString(n.Name) {
				found = append(found, n.Name)
			}
		}
		return true
	})
	return found
}

// TestVendorNamesAreData: packages for any vendor have no vendor's names in their code. Comments may name them as examples.
func TestVendorNamesAreData(t *testing.T) {
	inRepository(t)
	used := map[int]bool{}
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") || !slices.Contains(vendorNeutral, filepath.Dir(path)) && !slices.Contains(vendorNeutral, path) {
			continue
		}
		for _, name := range vendorNamesIn(t, path, nil) {
			i := slices.IndexFunc(vendorNamesAllowed, func(one struct{ file, pattern, reason string }) bool {
				return one.file == path && regexp.MustCompile("^(?:"+one.pattern+")$").MatchString(name)
			})
			if i < 0 {
				t.Errorf("%s has %q: take it from gpu.Traits", path, name)
			}
			used[i] = true
		}
	}
	for i, one := range vendorNamesAllowed {
		if !used[i] {
			t.Errorf("the exception of %s (%s) is not needed", one.file, one.reason)
		}
	}
}

// TestVendorNamesAreFound proves that the check above can fail, and that comments are exempt.
func TestVendorNamesAreFound(t *testing.T) {
	inRepository(t)
	source := "package a\n\n// NVIDIA_VISIBLE_DEVICES\nconst env = \"NVIDIA_VISIBLE_DEVICES\"\n\nvar x = gpu.NVIDIA\n"
	if found := vendorNamesIn(t, "a.go", source); !slices.Equal(found, []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA"}) {
		t.Errorf("found %q", found)
	}
}
