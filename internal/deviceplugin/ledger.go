package deviceplugin

import "github.com/berth-gpu/berth/internal/gpu"

// Bar is why a device must not be given out.
type Bar struct {
	// Unhealthy says that the kubelet must be told too, as the scheduler does not count
	// the holder: a DRA claim, maintenance. An orphan's pod is still counted.
	Unhealthy bool
}

// Ledger is what the device plugin asks of the ledger. Both answer from memory.
type Ledger interface {
	// Barred tells whether the device must not be given out at this moment.
	Barred(key gpu.DeviceKey) (Bar, bool)
	// Hold notes that the kubelet has given the devices of a resource to some container.
	// Its error names the device, who holds it and what ends that; nothing is held then.
	Hold(resource string, keys []gpu.DeviceKey) error
}

// openLedger bars nothing.
type openLedger struct{}

func (openLedger) Barred(gpu.DeviceKey) (Bar, bool)   { return Bar{}, false }
func (openLedger) Hold(string, []gpu.DeviceKey) error { return nil }
