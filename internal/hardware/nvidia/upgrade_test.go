package nvidia_test

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/sim"
)

// upgradable is a library whose file may be replaced.
type upgradable struct {
	nvml.Interface
	file string
}

func (u *upgradable) Replaced() (string, bool) { return u.file, u.file != "" }

// TestDriverUpgrade: another library file is reported when the driver refuses the loaded one, and when it was away and is back;
// never while it works.
func TestDriverUpgrade(t *testing.T) {
	m, _ := machine(t, "t4x4")
	library := &upgradable{Interface: m.NVML()}
	var reported []string
	a := nvidia.New(nvidia.Deps{Library: library, Roots: rootsOf(m), LibraryReplaced: func(file string) { reported = append(reported, file) }})
	defer a.Close()
	expect := func(when string, want ...string) {
		t.Helper()
		reported = nil
		scan(t, a)
		if !slices.Equal(reported, want) {
			t.Errorf("%s: reported %q; want %q", when, reported, want)
		}
	}
	expect("well")
	library.file = "new"
	expect("replaced, and the driver works")
	inject(t, m, sim.Fault{DriverGone: true})
	expect("gone")
	clearFaults(t, m, sim.ClearDriver)
	expect("back", "new")
	expect("still back")
	inject(t, m, sim.Fault{DriverGone: true})
	expect("gone again")
	clearFaults(t, m, sim.ClearDriver)
	inject(t, m, sim.Fault{Transient: sim.TransientError{Call: "Init", Error: "LIB_RM_VERSION_MISMATCH"}})
	expect("of another version", "new")
	library.file = ""
	expect("of another version, and the same file")
}
