package cdi

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

// The paths and the variable by which a client in a container finds its MPS daemon.
const (
	// MPSPipeVariable names the daemon's directory of pipes for the CUDA library.
	MPSPipeVariable = "CUDA_MPS_PIPE_DIRECTORY"
	// MPSShmPath is the directory in which the CUDA library has the memory that it shares with the server.
	MPSShmPath = "/dev/shm"
)

// mpsName returns the name of the device that connects a container to the MPS daemon of a GPU. It is requested beside the GPU's
// own device, which has the device nodes.
func mpsName(id gpu.UUID) string { return "mps-" + string(id) }

// mpsPipePath returns the path of the daemon's directory of pipes in the container.
func mpsPipePath(id gpu.UUID) string { return "/mps/" + string(id) + "/pipe" }

// Extras are what the configuration adds to the devices of the inventory.
type Extras struct {
	// MPS are the GPUs that are shared through an MPS daemon, in any order.
	MPS []MPSDevice
	// GDS, GDRCopy and MOFED give every container with a GPU the device nodes of GPUDirect
	// Storage, GDRCopy and Mellanox OFED.
	GDS     bool
	GDRCopy bool
	MOFED   bool
	// IMEXChannels are the channels that every container with a GPU gets.
	IMEXChannels []int
	// IMEXRequired makes a missing channel an error instead of a warning.
	IMEXRequired bool
}

// MPSDevice is a GPU with the directories of its MPS daemon, as the host names them.
type MPSDevice struct {
	GPU     gpu.UUID
	PipeDir string
	ShmDir  string
}

// mps returns one device per daemon whose directories exist. A mount of a missing directory would keep the container from starting
// with an error that does not name the daemon.
func (c *checker) mps(list []MPSDevice) []specs.Device {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b MPSDevice) int { return cmp.Compare(a.GPU, b.GPU) })
	list = slices.CompactFunc(list, func(a, b MPSDevice) bool { return a.GPU == b.GPU })
	var devices []specs.Device
	for _, one := range list {
		name := mpsName(one.GPU)
		if err := parser.ValidateDeviceName(name); err != nil {
			c.problem("CDI_NAME_INVALID", "%s gets no CDI device %q: %v", one.GPU, name, err)
			continue
		}
		missing := slices.DeleteFunc([]string{one.PipeDir, one.ShmDir}, c.host.Directory)
		if len(missing) > 0 {
			c.problem("CDI_MPS_MISSING", "%s gets no CDI device %s, so no container can join its MPS daemon: there is no directory %s on the host; "+
				"start berth-agent mps, which makes it", one.GPU, name, strings.Join(missing, " and no directory "))
			continue
		}
		devices = append(devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{
			Env: []string{MPSPipeVariable + "=" + mpsPipePath(one.GPU)},
			Mounts: []*specs.Mount{
				c.shared(one.PipeDir, mpsPipePath(one.GPU)),
				c.shared(one.ShmDir, MPSShmPath),
			},
		}})
	}
	return devices
}

// shared mounts a directory that client and server both write to: the client locks a file among the pipes, and creates its part of
// the shared memory. No program is run from it.
func (c *checker) shared(hostPath, containerPath string) *specs.Mount {
	return &specs.Mount{
		HostPath: c.host.ToHost(hostPath), ContainerPath: containerPath,
		Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"},
	}
}

// feature is a set of device nodes that a switch of the configuration adds.
type feature struct {
	wanted   bool
	code     string
	what     string
	patterns []string // below the device root; each pattern must match a file
	files    []string // below the driver root; those that exist
	fix      string
}

func (e *Extras) features() [3]feature {
	return [...]feature{
		{e.GDS, "CDI_GDS_MISSING", "gds", []string{"dev/nvidia-fs*"}, []string{"/run/udev", "/etc/cufile.json"},
			"load the kernel module nvidia-fs (package nvidia-gds), or set gds to false"},
		{e.GDRCopy, "CDI_GDRCOPY_MISSING", "gdrcopy", []string{"dev/gdrdrv"}, nil,
			"load the kernel module gdrdrv (package gdrdrv-dkms), or set gdrcopy to false"},
		{e.MOFED, "CDI_MOFED_MISSING", "mofed", []string{"dev/infiniband/uverbs*", "dev/infiniband/rdma_cm"}, nil,
			"load the kernel modules ib_uverbs and rdma_cm (MLNX_OFED or DOCA-OFED), or set mofed to false"},
	}
}

// addFeatures adds the device nodes of the features that are on to the edits of every container. It leaves out those that are
// missing: most containers use none of them, and no container would start.
func (c *checker) addFeatures(edits *specs.ContainerEdits, extras *Extras, driverRoot string) {
	for _, feature := range extras.features() {
		if !feature.wanted {
			continue
		}
		found := false
		for _, pattern := range feature.patterns {
			nodes := c.matching(pattern)
			if len(nodes) == 0 {
				c.problem(feature.code, "%s is on, but there is no /%s on the host, so containers do not get it; %s", feature.what, pattern, feature.fix)
				continue
			}
			for _, node := range nodes {
				found = c.addFeatureNode(edits, node, feature.code, feature.what, feature.fix) || found
			}
		}
		if found {
			edits.Mounts = append(edits.Mounts, c.present(driverRoot, feature.files)...)
		}
	}
	for _, channel := range sorted(extras.IMEXChannels) {
		c.addChannel(edits, channel, extras.IMEXRequired)
	}
	sortMounts(edits.Mounts)
}

// addChannel adds the node of an IMEX channel.
func (c *checker) addChannel(edits *specs.ContainerEdits, channel int, required bool) {
	name := fmt.Sprintf("dev/nvidia-caps-imex-channels/channel%d", channel)
	code, what := "CDI_IMEX_MISSING", fmt.Sprintf("IMEX channel %d is configured", channel)
	if required {
		code, what = "CDI_IMEX_REQUIRED", fmt.Sprintf("IMEX channel %d is required", channel)
	}
	const fix = "load the module nvidia with NVreg_CreateImexChannel0=1, or create the device node with mknod and the number in /proc/devices; check that nvidia-imex runs"
	if nodes := c.matching(name); len(nodes) > 0 {
		c.addFeatureNode(edits, nodes[0], code, what, fix)
		return
	}
	consequence := "containers run without it"
	if required {
		consequence = "programs that share memory between nodes will fail"
	}
	c.problem(code, "%s, but there is no /%s on the host: %s; %s", what, name, consequence, fix)
}

// addFeatureNode adds one node and reports whether it exists.
func (c *checker) addFeatureNode(edits *specs.ContainerEdits, node gpu.DeviceNode, code, what, fix string) bool {
	out, gid, why := c.node(node)
	if why != "" {
		c.problem(code, "%s: device node %s is left out of the CDI spec: %s; %s", what, node.Path, why, fix)
		return false
	}
	edits.DeviceNodes = append(edits.DeviceNodes, out)
	if gid != 0 && !slices.Contains(edits.AdditionalGIDs, gid) {
		edits.AdditionalGIDs = append(edits.AdditionalGIDs, gid)
		slices.Sort(edits.AdditionalGIDs)
	}
	return true
}

// matching returns the nodes of a pattern below the device root, or else, for a driver that is installed in a root of its own, below
// the host's: the kernel's modules create them there.
func (c *checker) matching(pattern string) []gpu.DeviceNode {
	for _, root := range []string{c.dev, c.host.Local("/")} {
		found, err := filepath.Glob(path.Join(globQuote(root), pattern))
		if err != nil || len(found) == 0 {
			continue
		}
		var nodes []gpu.DeviceNode
		for _, file := range found { // Glob sorts
			relative, err := filepath.Rel(root, file)
			if err != nil {
				continue
			}
			nodes = append(nodes, gpu.DeviceNode{Path: "/" + relative, HostPath: file})
		}
		return nodes
	}
	return nil
}

// globQuote escapes the special characters of patterns in a folder's name.
func globQuote(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

// present returns mounts of those files that the driver root has.
func (c *checker) present(driverRoot string, files []string) []*specs.Mount {
	var mounts []*specs.Mount
	for _, file := range files {
		hostPath := path.Join(driverRoot, file)
		if c.host.Missing(hostPath) == "" {
			mounts = append(mounts, &specs.Mount{
				HostPath: c.host.ToHost(hostPath), ContainerPath: file,
				Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
			})
		}
	}
	return mounts
}

func sorted(numbers []int) []int {
	numbers = slices.Clone(numbers)
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
