package deviceplugin

import "github.com/berth-gpu/berth/internal/core/gpu"

// Block says why a device must not be allocated.
type Block struct {
	// Unhealthy is true when the device has to be advertised as unhealthy too, since the scheduler does not count the holder: a DRA claim,
	// maintenance, a pod that has the device in another size or as another resource. An orphan's pod is still counted.
	Unhealthy bool
}

// Ledger is what the device plugin needs of the ledger.
type Ledger interface {
	// Blocked reports whether the device must not be allocated as the resource now. It answers from memory.
	Blocked(resource string, key gpu.DeviceKey) (Block, bool)
	// Hold records that the kubelet has allocated the devices of a resource to a container that it will name later. Its error names the
	// device, its holder and what releases it; nothing is recorded then. The mount, if it has a path, is read-only and goes into the
	// container, by which the ledger identifies it later.
	Hold(resource string, keys []gpu.DeviceKey) (Mount, error)
}

// FreeLedger is a Ledger that uses what the kubelet reports as free, to check its own holdings of these devices. Offered is called
// before Blocked.
type FreeLedger interface {
	Ledger
	// Offered is called with devices that the kubelet has allocated to no container as the resource. It returns those of them that Hold
	// would refuse because the kubelet's checkpoint lists them for a living pod: they are preferred last.
	Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey
}

// noLedger blocks nothing.
type noLedger struct{}

func (noLedger) Blocked(string, gpu.DeviceKey) (Block, bool) { return Block{}, false }
func (noLedger) Hold(string, []gpu.DeviceKey) (Mount, error) { return Mount{}, nil }
