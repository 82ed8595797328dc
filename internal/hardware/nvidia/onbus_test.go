package nvidia_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

func TestCountOnBus(t *testing.T) {
	type function struct {
		vendor string
		class  string
		driver string
	}
	tests := map[string]struct {
		functions []function
		want      int
	}{
		"no PCI bus":             {nil, 0},
		"GPUs with their driver": {[]function{{"0x10de", "0x030200", "nvidia"}, {"0x10de", "0x030000", "nvidia"}}, 2},
		"without a driver":       {[]function{{"0x10de", "0x030200", ""}}, 1},
		"of a virtual machine":   {[]function{{"0x10de", "0x030200", "vfio-pci"}, {"0x10de", "0x030200", "nouveau"}}, 0},
		"of others":              {[]function{{"0x1002", "0x030200", ""}, {"0x10de", "0x068000", "nvidia-nvswitch"}, {"0x10de", "0x040300", ""}}, 0},
		"unreadable":             {[]function{{"", "", ""}, {"0x10de", "zero", ""}}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sys := t.TempDir()
			for i, f := range tc.functions {
				folder := filepath.Join(sys, "bus/pci/devices", fmt.Sprintf("0000:%02x:00.0", i))
				if err := os.MkdirAll(folder, 0o755); err != nil {
					t.Fatal(err)
				}
				for file, text := range map[string]string{"vendor": f.vendor, "class": f.class} {
					if err := os.WriteFile(filepath.Join(folder, file), []byte(text+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if f.driver != "" {
					if err := os.Symlink("../../drivers/"+f.driver, filepath.Join(folder, "driver")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := nvidia.CountOnBus(nvidia.Roots{Sys: sys}); got != tc.want {
				t.Errorf("CountOnBus = %d, want %d", got, tc.want)
			}
		})
	}
}
