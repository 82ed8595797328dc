package sim

import (
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestTransientOnAnyCall checks that, while every call fails, no call returns a value and none panics.
func TestTransientOnAnyCall(t *testing.T) {
	m := newMachine(t, "h100x8")
	lib := open(t, m)
	d := gpu(t, lib, 0)
	mig, gi, ci := firstMIG(t, d)
	inject(t, m, Fault{GPU: "0", Transient: TransientError{Call: AllCalls, Error: "TIMEOUT"}})
	for _, handle := range []struct {
		of reflect.Type
		on any
	}{
		{reflect.TypeFor[nvml.Device](), d},
		{reflect.TypeFor[nvml.Device](), mig},
		{reflect.TypeFor[nvml.GpuInstance](), gi},
		{reflect.TypeFor[nvml.ComputeInstance](), ci},
	} {
		answered := 0
		callAll(handle.of, handle.on, func(method string, answers []nvml.Return) {
			for _, ret := range answers {
				// A call may refuse zero arguments before it asks the driver.
				if ret != nvml.ERROR_TIMEOUT && ret != nvml.ERROR_INVALID_ARGUMENT {
					t.Errorf("%T.%s = %v; want TIMEOUT", handle.on, method, ret)
				}
				if ret == nvml.ERROR_TIMEOUT {
					answered++
				}
			}
		})
		if answered == 0 {
			t.Errorf("no call of %T failed", handle.on)
		}
	}
	if _, ret := lib.DeviceGetHandleByIndex(0); ret != nvml.ERROR_TIMEOUT {
		t.Errorf("DeviceGetHandleByIndex = %v; want TIMEOUT", ret)
	}
	other := gpu(t, lib, 1)
	if _, ret := other.GetName(); ret != nvml.SUCCESS {
		t.Errorf("another GPU: %v", ret)
	}
	if err := m.Clear("0"); err != nil {
		t.Fatal(err)
	}
	if _, ret := d.GetName(); ret != nvml.SUCCESS {
		t.Errorf("after the repair: %v", ret)
	}
}

// TestTransientCounts checks how many calls fail, in each process, and how many succeed before.
func TestTransientCounts(t *testing.T) {
	m := newMachine(t, "h100x8")
	inject(t, m, Fault{GPU: "0", Transient: TransientError{Call: "GetMigMode", Error: "UNKNOWN", Times: 2, Skip: 1}})
	for range 2 {
		d := gpu(t, open(t, m), 0)
		var got []nvml.Return
		for range 5 {
			_, _, ret := d.GetMigMode()
			got = append(got, ret)
		}
		want := []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, nvml.SUCCESS, nvml.SUCCESS}
		if !slices.Equal(got, want) {
			t.Errorf("got %v; want %v", got, want)
		}
	}
}

// TestTransientOfTheLibrary checks that calls which concern no GPU fail too, including Init.
func TestTransientOfTheLibrary(t *testing.T) {
	m := newMachine(t, "t4x4")
	lib := open(t, m)
	for _, call := range nodeCalls() {
		if err := m.Inject(Fault{Transient: TransientError{Call: call, Error: "NOT_READY", Times: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, ret := lib.DeviceGetCount(); ret != nvml.ERROR_NOT_READY {
		t.Errorf("DeviceGetCount = %v", ret)
	}
	if _, ret := lib.DeviceGetCount(); ret != nvml.SUCCESS {
		t.Errorf("the second DeviceGetCount = %v", ret)
	}
	if ret := m.NVML().Init(); ret != nvml.ERROR_NOT_READY {
		t.Errorf("Init = %v", ret)
	}
	if made := CallsOf(lib)["DeviceGetCount"]; made != 2 {
		t.Errorf("CallsOf says %d calls of DeviceGetCount; want 2", made)
	}
	if err := m.Clear(ClearDriver); err != nil {
		t.Fatal(err)
	}
	if ret := m.NVML().Init(); ret != nvml.SUCCESS {
		t.Errorf("Init after the repair = %v", ret)
	}
}
