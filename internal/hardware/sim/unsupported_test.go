package sim

import (
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// callAll calls every method of an interface with zero arguments and passes the results to visit.
func callAll(of reflect.Type, on any, visit func(method string, answers []nvml.Return), skip ...string) {
	value := reflect.ValueOf(on)
	for i := range of.NumMethod() {
		if slices.Contains(skip, of.Method(i).Name) {
			continue
		}
		method := value.MethodByName(of.Method(i).Name)
		var args []reflect.Value
		for in := range method.Type().Ins() {
			args = append(args, reflect.Zero(in))
		}
		var answers []nvml.Return
		for _, result := range method.Call(args) {
			if ret, ok := reflect.TypeAssert[nvml.Return](result); ok {
				answers = append(answers, ret)
			}
		}
		visit(of.Method(i).Name, answers)
	}
}

// TestBasesSupportNothing calls each method of each generated type.
func TestBasesSupportNothing(t *testing.T) {
	bases := map[string]struct {
		of reflect.Type
		on any
	}{
		"library":          {reflect.TypeFor[nvml.Interface](), &unsupportedLibrary{}},
		"device":           {reflect.TypeFor[nvml.Device](), &unsupportedDevice{}},
		"GPU instance":     {reflect.TypeFor[nvml.GpuInstance](), &unsupportedGpuInstance{}},
		"compute instance": {reflect.TypeFor[nvml.ComputeInstance](), &unsupportedComputeInstance{}},
		"event set":        {reflect.TypeFor[nvml.EventSet](), &unsupportedEventSet{}},
	}
	for name, base := range bases {
		t.Run(name, func(t *testing.T) {
			calls := 0
			callAll(base.of, base.on, func(method string, answers []nvml.Return) {
				calls++
				for _, ret := range answers {
					// A call of the library with a nil handle is not forwarded.
					if ret != nvml.ERROR_NOT_SUPPORTED && (base.of != reflect.TypeFor[nvml.Interface]() ||
						ret != nvml.ERROR_INVALID_ARGUMENT) {
						t.Errorf("%s = %v, want NOT_SUPPORTED", method, ret)
					}
				}
			})
			if calls != base.of.NumMethod() || calls == 0 {
				t.Errorf("called %d methods of %d", calls, base.of.NumMethod())
			}
		})
	}
}

// TestNothingPanics calls each method of the simulated types with zero arguments, on each kind of hardware.
func TestNothingPanics(t *testing.T) {
	for _, name := range Profiles() {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, name)
			lib := open(t, m)
			d := gpu(t, lib, 0)
			callAll(reflect.TypeFor[nvml.Device](), d, func(string, []nvml.Return) {})
			if _, _, ret := d.GetMigMode(); ret == nvml.SUCCESS {
				mig, gi, ci := firstMIG(t, d)
				callAll(reflect.TypeFor[nvml.Device](), mig, func(string, []nvml.Return) {})
				callAll(reflect.TypeFor[nvml.ComputeInstance](), ci, func(string, []nvml.Return) {})
				callAll(reflect.TypeFor[nvml.GpuInstance](), gi, func(string, []nvml.Return) {})
			}
			set, ret := lib.EventSetCreate()
			if ret != nvml.SUCCESS {
				t.Fatal(ret)
			}
			callAll(reflect.TypeFor[nvml.EventSet](), set, func(string, []nvml.Return) {})
			callAll(reflect.TypeFor[nvml.Interface](), lib, func(string, []nvml.Return) {}, "EventSetCreate")
			if ret := set.Free(); ret != nvml.SUCCESS {
				t.Error(ret)
			}
		})
	}
}

// TestNilHandles passes a nil handle to each call that takes one.
func TestNilHandles(t *testing.T) {
	lib := open(t, newMachine(t, "t4x4"))
	callAll(reflect.TypeFor[nvml.Interface](), lib, func(method string, answers []nvml.Return) {
		if method == "DeviceGetUUID" && !slices.Equal(answers, []nvml.Return{nvml.ERROR_INVALID_ARGUMENT}) {
			t.Errorf("DeviceGetUUID(nil) = %v", answers)
		}
	}, "EventSetCreate")
}

// TestLibraryCallsReachHandles checks that NVML's C-style calls are forwarded to the handle's methods.
func TestLibraryCallsReachHandles(t *testing.T) {
	lib := open(t, newMachine(t, "a100x8-40g"))
	d := gpu(t, lib, 3)
	want, _ := d.GetUUID()
	if got, ret := lib.DeviceGetUUID(d); got != want || ret != nvml.SUCCESS {
		t.Errorf("DeviceGetUUID = %q, %v; want %q", got, ret, want)
	}
	if _, ret := lib.DeviceGetFanSpeed(d); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("DeviceGetFanSpeed = %v, want NOT_SUPPORTED", ret)
	}
	if again := gpu(t, lib, 3); again != d {
		t.Error("the same GPU has two handles")
	}
}

func TestBeforeInit(t *testing.T) {
	lib := newMachine(t, "t4x4").NVML()
	callAll(reflect.TypeFor[nvml.Interface](), lib, func(method string, answers []nvml.Return) {
		for _, ret := range answers {
			if ret == nvml.SUCCESS {
				t.Errorf("%s succeeds", method)
			}
		}
	}, "Init", "InitWithFlags")
}
