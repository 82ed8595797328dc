package nvidia

import (
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// TestSysfsAgreesWithNVML measures every pair of every simulated machine both ways.
func TestSysfsAgreesWithNVML(t *testing.T) {
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			m, err := sim.Create(filepath.Join(t.TempDir(), "machine"), profile)
			if err != nil {
				t.Fatal(err)
			}
			root := m.Root()
			a := New(Deps{Library: m.NVML(), Roots: Roots{
				Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
			}})
			defer a.Close()
			s, err := a.Scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range s.GPUs {
				for j, y := range s.GPUs[:i] {
					got := commonAncestor(a.sys.pciChain(x.PCI), a.sys.pciChain(y.PCI), x.NUMANode, y.NUMANode)
					if want := s.Topology[i][j].Path; got != want {
						t.Errorf("%s and %s: sysfs says %s, NVML %s", x.PCI, y.PCI, got.Letters(), want.Letters())
					}
				}
			}
		})
	}
}
