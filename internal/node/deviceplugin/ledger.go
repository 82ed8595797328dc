package deviceplugin

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// Ledger has the holders of devices; *[ledger.Ledger] is one.
type Ledger interface {
	// BlockedBy reports whether the device must not be allocated as the resource now. It answers from memory.
	BlockedBy(resource string, key gpu.DeviceKey) (ledger.Block, bool)
	// Offered is called with devices that the kubelet has allocated to no container as the resource, before BlockedBy: the ledger checks
	// its own holdings of them. It returns those of them that Allocate would refuse because the kubelet's checkpoint lists them for a
	// living pod: they are preferred last.
	Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey
	// Allocate records that the kubelet has allocated the devices of a resource to a container that it will name later, and that has the
	// grant. Its error names the device, its holder and what releases it; nothing is recorded then.
	Allocate(resource, grant string, keys []gpu.DeviceKey) error
}

// Grants are folders, one for each Allocate, by whose mount the ledger identifies a container later.
type Grants interface {
	// Take returns the ID of a grant, and Return makes one available again that was not used.
	Take() string
	Return(id string)
	// Paths returns where the folder of a grant is on the host, and where it is mounted in the container, read-only.
	Paths(id string) (host, container string)
}

// noLedger blocks nothing.
type noLedger struct{}

func (noLedger) BlockedBy(string, gpu.DeviceKey) (ledger.Block, bool) { return ledger.Block{}, false }
func (noLedger) Offered(string, []gpu.DeviceKey) []gpu.DeviceKey      { return nil }
func (noLedger) Allocate(_, _ string, _ []gpu.DeviceKey) error        { return nil }
