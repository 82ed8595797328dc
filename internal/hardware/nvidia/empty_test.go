package nvidia_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

// TestEmptyInstancesAreCheckedByNVML: an instance with a MIG device or a compute instance is not empty when the driver's files
// do not list it, because they are masked or partly read.
func TestEmptyInstancesAreCheckedByNVML(t *testing.T) {
	for name, hide := range map[string]string{
		"compute instance without its folder": "gi%d/ci0",
		"all compute instances masked":        "gi%d/*",
	} {
		t.Run(name, func(t *testing.T) {
			m, a := machine(t, "h100x8")
			act := actionsOn(m)
			id := scan(t, a).GPUs[0].UUID
			_, err := act.SetMIGMode(id, true)
			must(t, err)
			gi := mustCreate(t, act, id, "3g.40gb", 4)
			hidden, err := filepath.Glob(filepath.Join(m.Root(), "proc/driver/nvidia/capabilities/gpu0/mig", fmt.Sprintf(hide, gi)))
			must(t, err)
			if len(hidden) == 0 {
				t.Fatal("nothing to hide")
			}
			for _, path := range hidden {
				must(t, os.RemoveAll(path))
			}
			mig := scan(t, a).GPU(id).MIG
			if len(mig.Devices) != 1 || len(mig.Empty) != 0 {
				t.Errorf("devices %v, empty %v; want one device, none empty", mig.Devices, mig.Empty)
			}
			// NVML does not list the device, and the instance still has its compute instance.
			hiding := nvidia.New(nvidia.Deps{Library: &noDeviceList{Interface: m.NVML()}, Roots: nvidia.Roots{
				Driver: m.Root(), Dev: m.Root(), Proc: filepath.Join(m.Root(), "proc"), Sys: filepath.Join(m.Root(), "sys"),
			}})
			t.Cleanup(hiding.Close)
			if mig := scan(t, hiding).GPU(id).MIG; len(mig.Devices) != 0 || len(mig.Empty) != 0 {
				t.Errorf("without the list of devices: devices %v, empty %v; want none", mig.Devices, mig.Empty)
			}
		})
	}
}

// noDeviceList is a driver that lists no MIG devices.
type noDeviceList struct{ nvml.Interface }

func (l *noDeviceList) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	device, ret := l.Interface.DeviceGetHandleByIndex(index)
	return noDeviceListDevice{device}, ret
}

type noDeviceListDevice struct{ nvml.Device }

func (noDeviceListDevice) GetMigDeviceHandleByIndex(int) (nvml.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_FOUND
}

// TestRemoveEmptyKeepsCompute: the removal of an empty instance never removes a compute instance.
func TestRemoveEmptyKeepsCompute(t *testing.T) {
	m, a := machine(t, "h100x8")
	act := actionsOn(m)
	id := scan(t, a).GPUs[0].UUID
	_, err := act.SetMIGMode(id, true)
	must(t, err)
	gi := mustCreate(t, act, id, "3g.40gb", 4)
	if err := act.RemoveEmptyMIG(id, gi); !errors.Is(err, nvml.ERROR_IN_USE) {
		t.Errorf("remove an instance with a compute instance: %v; want IN_USE", err)
	}
	if got := devices(scan(t, a).GPU(id)); got != "3g.40gb@4" {
		t.Errorf("devices %s; want 3g.40gb@4", got)
	}
	library := &halfway{Interface: m.NVML(), destroy: nvml.ERROR_IN_USE}
	if _, err := nvidia.NewActions(nvidia.Deps{Library: library}).CreateMIG(id, "1g.10gb", 0); err == nil {
		t.Fatal("no empty instance was made")
	}
	empty := scan(t, a).GPU(id).MIG.Empty
	if len(empty) != 1 {
		t.Fatalf("empty %v; want one", empty)
	}
	must(t, act.RemoveEmptyMIG(id, empty[0].GI))
	must(t, act.RemoveEmptyMIG(id, empty[0].GI)) // it does not exist, which is not an error
	if mig := scan(t, a).GPU(id).MIG; len(mig.Empty) != 0 || devices(scan(t, a).GPU(id)) != "3g.40gb@4" {
		t.Errorf("left: %+v", mig)
	}
}
