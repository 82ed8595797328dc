package cdi

import (
	"github.com/berth-gpu/berth/internal/core/gpu"
	"tags.cncf.io/container-device-interface/specs-go"
)

// VendorEdits finds what the containers with a vendor's GPUs need besides the device nodes of the inventory. A package
// of the vendor implements it. A Writer makes one call at a time, in a goroutine that may take as long as a file system
// does.
type VendorEdits interface {
	// Common returns the edits of every container that gets a GPU: driver files, hooks, environment. Paths of mounts
	// may be those of the host or of this process; a mount whose path is not on the host is left out. missing has what
	// else was left out, with the reasons. After an error the last spec stays in force.
	Common(driver gpu.Driver) (edits specs.ContainerEdits, missing []gpu.Cause, err error)
	// PartitionNodes returns all device nodes that open a partition of a GPU; none when it cannot be opened.
	PartitionNodes(g *gpu.GPU, partition *gpu.MIGDevice) []gpu.DeviceNode
	// Links returns a hook that makes symbolic links ("target::link") in a container; nil for none.
	Links(links []string) *specs.Hook
}

// nothing is a vendor without edits of its own: its containers get only device nodes.
type nothing struct{}

func (nothing) Common(gpu.Driver) (edits specs.ContainerEdits, missing []gpu.Cause, err error) {
	return specs.ContainerEdits{}, nil, nil
}

func (nothing) PartitionNodes(_ *gpu.GPU, partition *gpu.MIGDevice) []gpu.DeviceNode {
	return partition.Nodes
}

func (nothing) Links([]string) *specs.Hook { return nil }
