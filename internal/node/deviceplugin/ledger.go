package deviceplugin

import "github.com/berth-gpu/berth/internal/core/gpu"

// Bar is why a device must not be given out.
type Bar struct {
	// Unhealthy says that the kubelet must be told too, as the scheduler does not count
	// the holder: a DRA claim, maintenance, a pod that has the device in another size or
	// as another resource. An orphan's pod is still counted.
	Unhealthy bool
}

// Ledger is what the device plugin asks of the ledger. Both answer from memory.
type Ledger interface {
	// Barred tells whether the device must not be given out as the resource at this moment.
	Barred(resource string, key gpu.DeviceKey) (Bar, bool)
	// Hold notes that the kubelet has given the devices of a resource to some container.
	// Its error names the device, who holds it and what ends that; nothing is held then. The mount, if it has
	// a path, is read-only and goes into the container, which is recognised by it later.
	Hold(resource string, keys []gpu.DeviceKey) (Mount, error)
}

// FreeLedger is a Ledger that wants to know what the kubelet calls free, which tells it
// that its picture of those devices is old. It is told before Barred is asked.
type FreeLedger interface {
	Ledger
	// Offered names devices that the kubelet has allocated to no container as the resource. The
	// result are those of them that Hold would refuse because the kubelet's checkpoint lists them for a living
	// pod: they are preferred last.
	Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey
}

// openLedger bars nothing.
type openLedger struct{}

func (openLedger) Barred(string, gpu.DeviceKey) (Bar, bool)    { return Bar{}, false }
func (openLedger) Hold(string, []gpu.DeviceKey) (Mount, error) { return Mount{}, nil }
