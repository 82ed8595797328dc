package nvidia_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
)

// node is a machine of go-nvml's mock devices, with the functions that the mock leaves out, and of file trees. Tests inject
// their faults here.
type node struct {
	library *server.Server
	roots   nvidia.Roots
	// gpus are those that NVML counts, in its order.
	gpus []*fakeGPU
	// initReturn is the return code of Init, callReturn that of every other library call.
	initReturn nvml.Return
	callReturn nvml.Return
	missing    map[string]bool // missing symbols of the library
	events     chan nvml.EventData
	late       chan nvml.EventData
	// now is the adapters' clock; the real one when nil.
	now      func() time.Time
	ancestor func(x, y *fakeGPU) (nvml.GpuTopologyLevel, nvml.Return)
}

// fakeGPU is one device with its faults.
type fakeGPU struct {
	*server.Device
	node     *node
	pci      string
	deviceID uint32
	// broken is the return code of every call on the device unless it is SUCCESS.
	broken nvml.Return
	// handle is the return code of DeviceGetHandleByIndex.
	handle       nvml.Return
	ecc          uint64
	eccSRAM      uint64
	pending      bool
	failed       bool
	recovery     nvml.DeviceGpuRecoveryAction
	noRecovery   bool
	pagesPending nvml.EnableState
	pages        nvml.Return // the return code of a GPU that retires no pages
	temperature  uint32
	throttle     uint64
	linkErrors   uint64
	links        []fakeLink
	fabric       nvml.GpuFabricInfo
	mig          []*fakeMIG
}

// fakeLink is an NVLink; to is a PCI address, or "switch".
type fakeLink struct {
	to   string
	down bool
	// untyped links do not report the type of their remote end.
	untyped bool
}

type fakeMIG struct {
	uuid       string
	name       string
	gi         int
	ci         int
	empty      bool // it has no compute instance
	profileID  uint32
	placement  nvml.GpuInstancePlacement
	attributes nvml.DeviceAttributes
}

// newNode returns a machine of the given models, with PCI buses 0x10, 0x20 and so on, the first half of them on NUMA node 0.
func newNode(t testing.TB, models ...gpus.Config) *node {
	t.Helper()
	n := &node{
		library: server.NewServerWithGPUs("580.95.05", "13.580.95.05", 13000),
		missing: map[string]bool{},
		events:  make(chan nvml.EventData, 16),
		ancestor: func(x, y *fakeGPU) (nvml.GpuTopologyLevel, nvml.Return) {
			return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
		},
	}
	root := t.TempDir()
	n.roots = nvidia.Roots{
		Driver: root, Dev: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"),
	}
	mkdir(t, filepath.Join(n.roots.Sys, "bus/pci/devices"))
	mkdir(t, filepath.Join(n.roots.Proc, "driver/nvidia/gpus"))
	mkdir(t, filepath.Join(root, "dev"))
	for i, model := range models {
		c := n.makeGPU(i, model)
		n.gpus = append(n.gpus, c)
		n.plugIn(t, c, i*2/len(models))
	}
	n.wire()
	return n
}

func (n *node) makeGPU(i int, model gpus.Config) *fakeGPU {
	c := &fakeGPU{
		Device: server.NewDeviceFromConfig(model, i),
		node:   n,
		pci:    fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)),
		pages:  nvml.ERROR_NOT_SUPPORTED,

		deviceID: 0x20b010de,
	}
	c.UUID = fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
	c.wire()
	return c
}

// plugIn adds a GPU to sysfs and to the driver's list.
func (n *node) plugIn(t testing.TB, c *fakeGPU, numa int) {
	t.Helper()
	at := filepath.Join(n.roots.Sys, "devices/pci0000:00", c.pci)
	write(t, filepath.Join(at, "numa_node"), fmt.Sprintf("%d\n", numa))
	write(t, filepath.Join(at, "config"), "\xde\x10\x00\x00")
	link := filepath.Join(n.roots.Sys, "bus/pci/devices", c.pci)
	if err := os.Symlink("../../../devices/pci0000:00/"+c.pci, link); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(n.roots.Proc, "driver/nvidia/gpus", c.pci, "information"),
		fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 24\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n",
			c.Config.Name, c.UUID, c.pci, c.Minor))
}

// pullOut removes a GPU from the machine.
func (n *node) pullOut(t testing.TB, c *fakeGPU) {
	t.Helper()
	for _, path := range []string{
		filepath.Join(n.roots.Sys, "bus/pci/devices", c.pci),
		filepath.Join(n.roots.Proc, "driver/nvidia/gpus", c.pci),
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *node) adapter() *nvidia.Adapter {
	return nvidia.New(nvidia.Deps{Library: n.library, Roots: n.roots, Now: n.now})
}

func (n *node) wire() {
	l := n.library
	l.InitFunc = func() nvml.Return { return n.initReturn }
	l.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return l.DriverVersion, n.initReturn }
	l.DeviceGetCountFunc = func() (int, nvml.Return) { return len(n.gpus), n.callReturn }
	l.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if n.callReturn != nvml.SUCCESS {
			return nil, n.callReturn
		}
		if n.gpus[i].handle != nvml.SUCCESS {
			return nil, n.gpus[i].handle
		}
		return n.gpus[i].Device, nvml.SUCCESS
	}
	l.LookupSymbolFunc = func(name string) error {
		if n.missing[name] {
			return fmt.Errorf("no symbol %s", name)
		}
		return nil
	}
	l.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				select {
				case data := <-n.events:
					return data, nvml.SUCCESS
				default:
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
}

// guarded returns a function that returns the GPU's error code, if it has one.
func guarded[T any](c *fakeGPU, f func() T) func() (T, nvml.Return) {
	return func() (T, nvml.Return) {
		if c.broken != nvml.SUCCESS {
			var none T
			return none, c.broken
		}
		return f(), nvml.SUCCESS
	}
}

func (c *fakeGPU) wire() {
	d := c.Device
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		info := busID(c.pci)
		info.PciDeviceId = c.deviceID
		return info, nvml.SUCCESS
	}
	d.GetUUIDFunc = guarded(c, func() string { return c.UUID })
	d.GetNameFunc = guarded(c, func() string { return c.Config.Name })
	d.GetSupportedEventTypesFunc = guarded(c, func() uint64 { return nvml.EventTypeXidCriticalError })
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return c.broken }
	d.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
		if c.fabric.State == 0 {
			return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return c.fabric, nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, c.pending, c.failed, c.broken }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return c.ecc, c.broken }
	d.GetMemoryErrorCounterFunc = func(_ nvml.MemoryErrorType, _ nvml.EccCounterType, where nvml.MemoryLocation) (uint64, nvml.Return) {
		if where != nvml.MEMORY_LOCATION_DRAM {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return c.ecc - c.eccSRAM, c.broken
	}
	d.GetPersistenceModeFunc = guarded(c, func() nvml.EnableState { return nvml.FEATURE_ENABLED })
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			number, known := uint32(0), false
			switch values[i].FieldId {
			case nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
				number, known = uint32(c.recovery), !c.noRecovery
			case nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL:
				number, known = uint32(c.linkErrors), len(c.links) > 0
			}
			binary.NativeEndian.PutUint32(values[i].Value[:], number)
			if !known {
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			}
		}
		return c.broken
	}
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) {
		return c.pagesPending, cmp.Or(c.broken, c.pages)
	}
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return c.temperature, c.broken }
	d.GetTemperatureThresholdFunc = func(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
		switch kind {
		case nvml.TEMPERATURE_THRESHOLD_SLOWDOWN:
			return 92, c.broken
		case nvml.TEMPERATURE_THRESHOLD_SHUTDOWN:
			return 95, c.broken
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetCurrentClocksThrottleReasonsFunc = guarded(c, func() uint64 { return c.throttle })
	d.GetTopologyCommonAncestorFunc = func(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
		for _, g := range c.node.gpus {
			if g.Device == other {
				return c.node.ancestor(c, g)
			}
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	c.wireLinks()
	c.wireMIG()
}

func (c *fakeGPU) wireLinks() {
	d := c.Device
	d.GetNvLinkStateFunc = func(i int) (nvml.EnableState, nvml.Return) {
		switch {
		case c.broken != nvml.SUCCESS:
			return 0, c.broken
		case len(c.links) == 0:
			return 0, nvml.ERROR_NOT_SUPPORTED
		case i >= len(c.links):
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case c.links[i].down:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(i int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		switch {
		case c.links[i].untyped:
			return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.SUCCESS
		case c.links[i].to == "switch":
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
	d.GetNvLinkRemotePciInfoFunc = func(i int) (nvml.PciInfo, nvml.Return) {
		if c.links[i].to == "switch" {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return busID(c.links[i].to), nvml.SUCCESS
	}
}

func (c *fakeGPU) wireMIG() {
	d := c.Device
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(c.mig) || c.mig[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return c.mig[i].device(), nvml.SUCCESS
	}
	d.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) {
		for _, m := range c.mig {
			if m != nil && m.gi == id {
				return &mock.GpuInstance{
					GetInfoFunc: func() (nvml.GpuInstanceInfo, nvml.Return) {
						return nvml.GpuInstanceInfo{Id: uint32(id), ProfileId: m.profileID, Placement: m.placement}, nvml.SUCCESS
					},
					GetComputeInstanceByIdFunc: func(ci int) (nvml.ComputeInstance, nvml.Return) {
						if m.empty || ci != m.ci {
							return nil, nvml.ERROR_NOT_FOUND
						}
						return &mock.ComputeInstance{}, nvml.SUCCESS
					},
				}, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
}

func (m *fakeMIG) device() nvml.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return m.uuid, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return m.name, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return m.gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return m.ci, nvml.SUCCESS },
		GetAttributesFunc:        func() (nvml.DeviceAttributes, nvml.Return) { return m.attributes, nvml.SUCCESS },
	}
}

// busID returns a PCI address as NVML does.
func busID(address string) nvml.PciInfo {
	var info nvml.PciInfo
	for i, c := range []byte("0000" + strings.ToUpper(address)) {
		info.BusId[i] = int8(c)
	}
	return info
}

// onSwitches gives each GPU n links into an NVSwitch fabric.
func onSwitches(n int, list ...*fakeGPU) {
	for _, c := range list {
		c.links = nil
		for range n {
			c.links = append(c.links, fakeLink{to: "switch"})
		}
	}
}

// calls counts the NVML calls made so far, by name.
func (n *node) calls() map[string]int {
	counts := map[string]int{}
	count := func(value any) {
		v := reflect.ValueOf(value)
		for i := range v.NumMethod() {
			name, ok := strings.CutSuffix(v.Type().Method(i).Name, "Calls")
			if !ok || v.Method(i).Type().NumIn() != 0 {
				continue
			}
			if made := v.Method(i).Call(nil)[0].Len(); made > 0 {
				counts[name] += made
			}
		}
	}
	count(&n.library.Interface)
	for _, c := range n.gpus {
		count(&c.Device.Device)
	}
	return counts
}

func total(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

func scan(t testing.TB, a *nvidia.Adapter) *gpu.Snapshot {
	t.Helper()
	snapshot, err := a.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &snapshot
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
