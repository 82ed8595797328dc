package class

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// TestYAML prints some classes.
func TestYAML(t *testing.T) {
	for name, settings := range map[string]Settings{
		"default": {Profiles: []string{"1g.10gb", "1g.10gb+me", "1g.24gb-me", "2g.48gb+me.all"}},
		"renamed": {Driver: "gpu.example.com", ResourceName: "example.com/gpu", Profiles: []string{"7g.80gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			classes, err := Classes(settings)
			if err != nil {
				t.Fatal(err)
			}
			got, err := YAML(classes)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, "testdata/"+name+".yaml", string(got))
		})
	}
}

// TestNamesOfTheDevicePlugin compares the extended resource names with what the device plugin advertises for the same devices.
func TestNamesOfTheDevicePlugin(t *testing.T) {
	classes, err := Classes(Settings{Profiles: DefaultProfiles()})
	if err != nil {
		t.Fatal(err)
	}
	if got := *classes[0].Spec.ExtendedResourceName; got != offer.DefaultResource {
		t.Errorf("whole GPUs are %s", got)
	}
	for i, profile := range DefaultProfiles() {
		if got, want := *classes[i+1].Spec.ExtendedResourceName, offer.MIGResource(profile); got != want {
			t.Errorf("%s is %s, want %s", profile, got, want)
		}
	}
}

// TestDefaultProfiles looks for the profiles of each GPU that the simulator can partition.
func TestDefaultProfiles(t *testing.T) {
	models, err := profile.Models()
	if err != nil {
		t.Fatal(err)
	}
	list, found := DefaultProfiles(), 0
	for name, model := range models {
		if model.MIG == "" {
			continue
		}
		geometry, err := profile.LoadGeometry(model.MIG)
		if err != nil {
			t.Fatal(err)
		}
		for i := range geometry.Profiles {
			found++
			if !slices.Contains(list, geometry.Profiles[i].Name) {
				t.Errorf("%s has %s, which is not in the list", name, geometry.Profiles[i].Name)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d profiles found", found)
	}
}

// TestRefusedClasses has settings that would give classes that the API server, or the scheduler, cannot use.
func TestRefusedClasses(t *testing.T) {
	for name, test := range map[string]struct {
		settings Settings
		want     string
	}{
		"a profile twice":         {Settings{Profiles: []string{"1g.5gb", "1g.5gb"}}, "nvidia.com/mig-1g.5gb"},
		"the name of a profile":   {Settings{ResourceName: "nvidia.com/mig-1g.5gb", Profiles: []string{"1g.5gb"}}, "DeviceClasses gpu.berth.dev and mig-1g.5gb.gpu.berth.dev"},
		"a resource without name": {Settings{ResourceName: "gpu"}, `"gpu" is invalid`},
		"the driver":              {Settings{Driver: "GPU"}, `"GPU": the name is invalid`},
		"a profile with spaces":   {Settings{Profiles: []string{"1g 5gb"}}, "is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Classes(test.settings); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
