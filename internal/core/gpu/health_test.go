package gpu

import (
	"slices"
	"testing"
)

func TestClass(t *testing.T) {
	tests := map[State]struct {
		class       State
		allocatable bool
	}{
		"":          {Healthy, true},
		Healthy:     {Healthy, true},
		Degraded:    {Degraded, true},
		Draining:    {Draining, false},
		Unhealthy:   {Unhealthy, false},
		NeedsReset:  {Unhealthy, false},
		NeedsReboot: {Unhealthy, false},
		Gone:        {Unhealthy, false},
	}
	for state, want := range tests {
		if got := state.Class(); got != want.class {
			t.Errorf("state %q is of class %s, want %s", state, got, want.class)
		}
		if got := state.Allocatable(); got != want.allocatable {
			t.Errorf("state %q is allocatable: %v, want %v", state, got, want.allocatable)
		}
	}
}

// TestCode: codes as causes show them, and their order.
func TestCode(t *testing.T) {
	if got := []string{XID(79).String(), SXID(12028).String(), Code{}.String()}; !slices.Equal(got, []string{"XID79", "SXID12028", ""}) {
		t.Errorf("codes are written %q", got)
	}
	if !XID(0).IsZero() || !SXID(0).IsZero() || XID(1).IsZero() {
		t.Error("0 is a code, or 1 is none")
	}
	codes := []Code{XID(9), XID(2), SXID(5), {}}
	slices.SortFunc(codes, Code.Compare)
	if want := []Code{{}, SXID(5), XID(2), XID(9)}; !slices.Equal(codes, want) {
		t.Errorf("sorted: %v; want %v", codes, want)
	}
}
