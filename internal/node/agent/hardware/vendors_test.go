package hardware

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/gpu"
	vendor "github.com/berth-gpu/berth/internal/hardware"
	"github.com/berth-gpu/berth/internal/hardware/stub"
)

// TestVendors: a vendor that the program adds comes last, has a resource of its own and no CDI edits.
func TestVendors(t *testing.T) {
	extra := stub.New(t.TempDir())
	machine := Machine{Extra: []vendor.Vendor{extra}}
	var opened, named []string
	for _, v := range machine.Vendors(VendorDeps{Log: slog.New(slog.DiscardHandler)}) {
		opened = append(opened, v.Traits().Name)
	}
	for _, traits := range machine.Traits() {
		named = append(named, traits.Name)
	}
	want := []string{gpu.NVIDIA, extra.Traits().Name}
	if diff := cmp.Diff(want, opened); diff != "" {
		t.Errorf("vendors (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"example": "example.com/gpu"}, machine.OtherVendors()); diff != "" {
		t.Errorf("resources of other vendors (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"example": true}, machine.Plain()); diff != "" {
		t.Errorf("vendors without CDI edits (-want +got):\n%s", diff)
	}
	if alone := (Machine{}); len(alone.OtherVendors()) != 0 || len(alone.Plain()) != 0 {
		t.Errorf("without a further vendor: %v, %v", alone.OtherVendors(), alone.Plain())
	}
}
