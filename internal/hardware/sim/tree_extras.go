package sim

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// extra is a driver besides the GPU driver: GPUDirect Storage, GDRCopy, Mellanox OFED, IMEX channels.
type extra struct {
	// driver is its name in /proc/devices.
	driver string
	major  uint32
	nodes  []extraNode
}

type extraNode struct {
	path  string
	minor uint32
}

// storageNodes is how many device nodes nvidia-fs creates.
const storageNodes = 16

// extras returns the loaded drivers; all but InfiniBand's need the GPU driver.
func (hw *hardware) extras(st *state) []extra {
	var loaded []extra
	for _, name := range hw.Extras {
		if st.DriverGone && name != profile.MOFED {
			continue
		}
		switch name {
		case profile.GDRCopy:
			loaded = append(loaded, extra{"gdrdrv", hw.Majors.GDRCopy, []extraNode{{"dev/gdrdrv", 0}}})
		case profile.GDS:
			storage := extra{driver: "nvidia-fs", major: hw.Majors.GDS}
			for i := range uint32(storageNodes) {
				storage.nodes = append(storage.nodes, extraNode{fmt.Sprintf("dev/nvidia-fs%d", i), i})
			}
			loaded = append(loaded, storage)
		case profile.MOFED:
			// The minor is the one that Linux uses for uverbs0. rdma_cm has the next minor here, because its own would
			// reach a real one.
			loaded = append(loaded, extra{"infiniband_verbs", hw.Majors.Verbs,
				[]extraNode{{"dev/infiniband/uverbs0", 192}, {"dev/infiniband/rdma_cm", 255}}})
		case profile.IMEX:
			loaded = append(loaded, extra{"nvidia-caps-imex-channels", hw.Majors.IMEX,
				[]extraNode{{"dev/nvidia-caps-imex-channels/channel0", 0}}})
		}
	}
	return loaded
}

// addExtras adds their device nodes, and the files that GPUDirect Storage needs in a container.
func addExtras(b *treeBuilder, hw *hardware, st *state) {
	for _, one := range hw.extras(st) {
		if one.driver == "nvidia-fs" {
			b.file("etc/cufile.json", "{\"properties\": {\"allow_compat_mode\": true}}\n")
			b.file(fmt.Sprintf("run/udev/data/c%d:0", one.major), "E:SUBSYSTEM=nvidia-fs\n")
		}
		if hw.NodesError != "" {
			continue
		}
		for _, node := range one.nodes {
			b.node(node.path, 0o666, one.major, node.minor)
		}
	}
}
