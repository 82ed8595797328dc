package nvidia

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

func TestProfileOf(t *testing.T) {
	const a100, a100x80, a30, h200 = 40960 << 20, 81920 << 20, 24576 << 20, 143771 << 20
	for name, test := range map[string]struct {
		g     uint32
		c     uint32
		mib   uint64
		total uint64
		want  string
	}{
		"1g.5gb":      {1, 1, 4864, a100, "1g.5gb"},
		"1g.10gb":     {1, 1, 9856, a100, "1g.10gb"},
		"7g.40gb":     {7, 7, 40192, a100, "7g.40gb"},
		"2g.20gb":     {2, 2, 19968, a100x80, "2g.20gb"},
		"1g.6gb":      {1, 1, 5952, a30, "1g.6gb"},
		"3g.71gb":     {3, 3, 71168, h200, "3g.71gb"},
		"1c.3g.40gb":  {3, 1, 40192, a100x80, "1c.3g.40gb"},
		"no answer":   {0, 0, 0, a100, ""},
		"no parent's": {1, 1, 4864, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := profileOf(nvml.DeviceAttributes{
				GpuInstanceSliceCount: test.g, ComputeInstanceSliceCount: test.c, MemorySizeMB: test.mib,
			}, "", test.total)
			if got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

func TestProfileInName(t *testing.T) {
	for name, test := range map[string]struct{ name, want string }{
		"plain":        {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"},
		"attribute":    {"NVIDIA RTX PRO 6000 MIG 1g.24gb-me", "1g.24gb-me"},
		"no profile":   {"NVIDIA A100-SXM4-40GB", ""},
		"other words":  {"NVIDIA X MIG of some kind", ""},
		"compute part": {"NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb", "1c.2g.20gb"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := profileInName(test.name); got != test.want {
				t.Errorf("got %q; want %q", got, test.want)
			}
		})
	}
}

// TestLibraryIsFoundLater: a library that is installed later is found.
func TestLibraryIsFoundLater(t *testing.T) {
	root := t.TempDir()
	l := OpenLibrary(root)
	if got := l.Init(); got != nvml.ERROR_LIBRARY_NOT_FOUND {
		t.Errorf("no library: Init = %v; want LIBRARY_NOT_FOUND", got)
	}
	if got := l.Shutdown(); got != nvml.ERROR_UNINITIALIZED {
		t.Errorf("Shutdown before Init = %v; want UNINITIALIZED", got)
	}
	file := filepath.Join(root, "usr/lib64", libraryName)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("no ELF file"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := libraryFiles(root); !slices.Equal(got, []string{file}) {
		t.Errorf("found %v; want %s", got, file)
	}
	if got := l.Init(); got != nvml.ERROR_LIBRARY_NOT_FOUND {
		t.Errorf("a file that is no library: Init = %v; want LIBRARY_NOT_FOUND", got)
	}
	a := New(Deps{Library: l, Roots: Roots{Driver: root, Dev: root, Proc: root, Sys: root}})
	defer a.Close()
	snapshot, err := a.Scan(t.Context())
	if err != nil || len(snapshot.Faults) != 1 || snapshot.Faults[0].Code != "DRIVER_MISSING" ||
		!strings.Contains(snapshot.Faults[0].Message, "cannot be loaded: "+file+": ") {
		t.Errorf("a file that is no library: faults %+v, %v; want one with its path", snapshot.Faults, err)
	}
}

// TestTreeCannotBeLeft: no link leads out of the root.
func TestTreeCannotBeLeft(t *testing.T) {
	outside, inside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	if content, err := (tree{inside}).read("link"); err == nil {
		t.Errorf("read %q through a link that leaves the root; want an error", content)
	}
}

// TestCodeNames: return codes have the names that users search for.
func TestCodeNames(t *testing.T) {
	if got := codeName(nvml.ERROR_GPU_IS_LOST); got != "GPU_IS_LOST" {
		t.Errorf("got %s", got)
	}
	if got := codeName(nvml.ERROR_CORRUPTED_INFOROM); got != "NVML error 14" {
		t.Errorf("got %s", got)
	}
}

func FuzzParseInformation(f *testing.F) {
	f.Add([]byte("Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c\nDevice Minor: \t 3\nGPU Excluded:\t No\n"))
	f.Add([]byte("GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: 99999999\nGPU Excluded: Yes"))
	f.Fuzz(func(t *testing.T, content []byte) {
		g, _ := parseInformation(content)
		if g.UUID != "" && (!strings.HasPrefix(string(g.UUID), "GPU-") || strings.Contains(string(g.UUID), "?")) {
			t.Errorf("took %q for a UUID", g.UUID)
		}
		if g.Minor < -1 || g.Minor > 1<<16 {
			t.Errorf("took %d for a minor", g.Minor)
		}
	})
}

func FuzzParseDevices(f *testing.F) {
	f.Add([]byte("Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n  8 sd\n"))
	f.Add([]byte("nvidia-caps 237\n-1 nvidia-caps"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if major := parseDevices(content, capsDriver); major >= 1<<12 {
			t.Errorf("took %d for a major", major)
		}
	})
}

func TestParseDevices(t *testing.T) {
	const devices = "Character devices:\n195 nvidia\n195 nvidiactl\n237 nvidia-caps\n238 nvidia-caps-imex-channels\n\nBlock devices:\n250 nvidia-uvm\n"
	for driver, want := range map[string]uint32{"nvidia-caps": 237, "nvidia": 195, "nvidia-uvm": 0, "none": 0} {
		if got := parseDevices([]byte(devices), driver); got != want {
			t.Errorf("%s: got %d; want %d", driver, got, want)
		}
	}
}

func TestAddressOf(t *testing.T) {
	// Without a text, the numbers count.
	if got, want := addressOf(nvml.PciInfo{Domain: 1, Bus: 0x1b, Device: 2}), (gpu.PCIAddress{Domain: 1, Bus: 0x1b, Device: 2}); got != want {
		t.Errorf("got %v; want %v", got, want)
	}
}
