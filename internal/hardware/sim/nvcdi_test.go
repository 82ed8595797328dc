package sim

import (
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

// TestContainerToolkit checks that NVIDIA's nvcdi library finds the driver's files in the tree.
func TestContainerToolkit(t *testing.T) {
	m := newMachine(t, "h100x8")
	generator, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(m.NVML()),
		nvcdi.WithDriverRoot(m.Root()), nvcdi.WithDevRoot(m.Root()), nvcdi.WithNVIDIACDIHookPath("/usr/bin/hook"),
	)
	if err != nil {
		t.Fatal(err)
	}
	edits, err := generator.GetCommonEdits()
	if err != nil {
		t.Fatal(err)
	}
	var mounted []string
	for _, mount := range edits.Mounts {
		mounted = append(mounted, strings.TrimPrefix(mount.HostPath, m.Root()+"/"))
	}
	for _, want := range []string{
		libraryFolder() + "/libcuda.so." + driverVersion, libraryFolder() + "/libnvidia-ml.so." + driverVersion,
		"lib/firmware/nvidia/" + driverVersion + "/gsp_ga10x.bin", "usr/bin/nvidia-smi",
	} {
		if !slices.Contains(mounted, want) {
			t.Errorf("%s is not mounted; mounted: %v", want, mounted)
		}
	}
}
