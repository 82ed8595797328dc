package gpu

import "testing"

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
