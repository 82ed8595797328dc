package labels

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxSysFile limits what is read of a file: the configuration space of PCI Express has 4 KiB.
const maxSysFile = 4 << 10

// ReadHost reads the host's facts below the root of its sysfs, usually /sys. It leaves out what cannot be read, as on machines
// without DMI. Only root can read the configuration space of a GPU.
func ReadHost(sys string, snapshot *gpu.Snapshot, vendors ...Vendor) Host {
	host := Host{Machine: line(sys, "class/dmi/id/product_name"), Classes: map[gpu.UUID]uint32{}}
	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		folder := path.Join("bus/pci/devices", g.PCI.String())
		class, err := strconv.ParseUint(strings.TrimPrefix(line(sys, path.Join(folder, "class")), "0x"), 16, 32)
		if err == nil {
			host.Classes[g.UUID] = uint32(class)
		}
		space, err := read(sys, path.Join(folder, "config"))
		if err != nil || g.Health.State == gpu.Gone {
			continue
		}
		at := slices.IndexFunc(vendors, func(v Vendor) bool { return v.Name() == g.Vendor })
		if at < 0 {
			continue
		}
		found, err := vendors[at].VirtualGPU(space)
		if err == nil && (host.VGPU == nil || found.Present && !host.VGPU.Present) {
			host.VGPU = &found
		}
	}
	return host
}

func line(sys, name string) string {
	content, err := read(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func read(sys, name string) (content []byte, err error) {
	file, err := os.OpenInRoot(sys, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, maxSysFile))
}
