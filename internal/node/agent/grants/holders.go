package grants

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/deviceplugin"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// Ledger has the holders of devices; *[ledger.Ledger] is one.
type Ledger interface {
	BlockedBy(resource string, key gpu.DeviceKey) (ledger.Block, bool)
	Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey
	Allocate(resource, grant string, keys []gpu.DeviceKey) error
}

// Holders is a ledger in which the device plugin allocates: each allocation gets a grant.
type Holders struct {
	Ledger Ledger
	Grants *Grants
}

var _ deviceplugin.FreeLedger = Holders{}

// Blocked implements deviceplugin.Ledger.
func (h Holders) Blocked(resource string, key gpu.DeviceKey) (deviceplugin.Block, bool) {
	block, blocked := h.Ledger.BlockedBy(resource, key)
	return deviceplugin.Block{Unhealthy: block.Unseen}, blocked
}

// Offered implements deviceplugin.FreeLedger.
func (h Holders) Offered(resource string, keys []gpu.DeviceKey) []gpu.DeviceKey {
	return h.Ledger.Offered(resource, keys)
}

// Hold implements deviceplugin.Ledger.
func (h Holders) Hold(resource string, keys []gpu.DeviceKey) (deviceplugin.Mount, error) {
	id := h.Grants.take()
	if err := h.Ledger.Allocate(resource, id, keys); err != nil {
		h.Grants.putBack(id)
		return deviceplugin.Mount{}, err
	}
	host, container := h.Grants.paths(id)
	return deviceplugin.Mount{HostPath: host, ContainerPath: container}, nil
}
