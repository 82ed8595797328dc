// Package stub is a vendor whose GPUs are described by files, as an example of a vendor and for tests of several vendors on one
// node. No program that ships links it.
//
// It guarantees that a folder without the file driver is a node without a driver, a snapshot with a fault and no error, and
// that each call reads the files again. Below the folder are:
//
//	driver           the version of the driver
//	gpuN/uuid        the UUID of the GPU with the index N
//	gpuN/product     its name
//	gpuN/memory      its memory in bytes
//	gpuN/fault       a sentence about what is wrong with it; may be missing
//	dev/exampleN     its device node, which containers get as /dev/exampleN
//
// It must import nothing of Berth but core.
package stub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// interval is the time between two measurements.
const interval = 10 * time.Second

// Vendor is the GPUs below a folder.
type Vendor struct{ root string }

// New returns the vendor of the GPUs below a folder, which may be missing. It touches no file.
func New(root string) *Vendor { return &Vendor{root} }

// Traits returns the names of the vendor.
func (v *Vendor) Traits() gpu.Traits {
	return gpu.Traits{
		Name: "example", Title: "Example", ResourcePrefix: "example.com", UUIDPrefix: "EX-",
		VisibleDevices: []string{"EXAMPLE_VISIBLE_DEVICES"},
		NodePrefixes:   []string{"/dev/example"}, Majors: []string{"example"},
	}
}

// read returns the content of a file; empty for one that is missing.
func (v *Vendor) read(parts ...string) string {
	content, err := os.ReadFile(filepath.Join(append([]string{v.root}, parts...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// Scan returns the GPUs in the order of their index, up to the first index that is missing.
func (v *Vendor) Scan(ctx context.Context) (gpu.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	name, driver := v.Traits().Name, gpu.Driver{Version: v.read("driver")}
	snapshot := gpu.Snapshot{Vendors: []gpu.VendorState{{Name: name, Driver: driver, Scanned: true}}}
	if !driver.Present() {
		snapshot.Faults = []gpu.Cause{{Code: "DRIVER_MISSING", Message: "there is no file driver in " + v.root}}
		return snapshot, nil
	}
	for index := 0; ; index++ {
		folder := "gpu" + strconv.Itoa(index)
		uuid := v.read(folder, "uuid")
		if uuid == "" {
			break
		}
		memory, err := strconv.ParseUint(v.read(folder, "memory"), 10, 64)
		if err != nil {
			return gpu.Snapshot{}, fmt.Errorf("scan %s: %s/memory: %w", v.root, folder, err)
		}
		g := gpu.GPU{
			UUID: gpu.UUID(uuid), Vendor: name, Driver: driver, Index: index, Minor: index, Product: v.read(folder, "product"),
			MemoryBytes: memory, NUMANode: gpu.NoNUMANode, Nodes: []gpu.DeviceNode{v.node(index)}, Health: gpu.Health{Recovery: gpu.RecoveryNone},
		}
		if fault := v.read(folder, "fault"); fault != "" {
			g.Health.Causes = []gpu.Cause{{Code: "GPU_UNREADABLE", Message: fault}}
		}
		snapshot.GPUs = append(snapshot.GPUs, g)
	}
	snapshot.Topology = gpu.NewTopology(len(snapshot.GPUs))
	return snapshot, nil
}

// node returns the device node of a GPU; without HostPath if the host has none.
func (v *Vendor) node(index int) gpu.DeviceNode {
	node := gpu.DeviceNode{Path: "/dev/example" + strconv.Itoa(index), Minor: uint32(index)}
	path := filepath.Join(v.root, node.Path)
	var stat unix.Stat_t
	if unix.Stat(path, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR {
		node.HostPath, node.Major, node.Minor = path, unix.Major(uint64(stat.Rdev)), unix.Minor(uint64(stat.Rdev))
	}
	return node
}

// Watch returns when ctx ends: the files report no events.
func (v *Vendor) Watch(ctx context.Context, _ func(gpu.Event)) error {
	<-ctx.Done()
	return nil
}

// Sample measures the memory of the GPUs.
func (v *Vendor) Sample(ctx context.Context, emit func(gpu.Sample)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		if snapshot, err := v.Scan(ctx); err == nil {
			sample := gpu.Sample{Time: time.Now(), Took: time.Since(began)}
			for i := range snapshot.GPUs {
				one := gpu.GPUSample{GPU: snapshot.GPUs[i].UUID}
				one.Set(gpu.MemorySize, float64(snapshot.GPUs[i].MemoryBytes))
				sample.GPUs = append(sample.GPUs, one)
			}
			emit(sample)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}
