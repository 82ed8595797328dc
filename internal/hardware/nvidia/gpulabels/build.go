package gpulabels

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
)

// Vendor computes the labels about NVIDIA's GPUs.
type Vendor struct{}

// Name returns the vendor's name.
func (Vendor) Name() string { return gpu.NVIDIA }

// Labels returns the labels about the GPUs of a node.
func (Vendor) Labels(in *labelset.Input) labelset.Labels {
	b := &builder{Input: in, labels: labelset.Labels{}}
	for i := range in.Snapshot.GPUs {
		if g := &in.Snapshot.GPUs[i]; g.Health.State != gpu.Gone {
			b.gpus = append(b.gpus, g)
		}
	}
	slices.SortFunc(b.gpus, func(x, y *gpu.GPU) int {
		return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.UUID, y.UUID))
	})
	b.node()
	if len(b.gpus) > 0 {
		b.hardware()
	}
	return b.labels
}

// builder has the data of one call of Build.
type builder struct {
	*labelset.Input
	labels labelset.Labels
	// gpus are those that respond, by index.
	gpus []*gpu.GPU
}

func (b *builder) set(key, value string) { b.labels[key] = value }

func (b *builder) number(key string, value int) { b.set(key, strconv.Itoa(value)) }

// node adds the labels that do not depend on whether a GPU responds.
func (b *builder) node() {
	if !b.Timestamp.IsZero() {
		b.set(nvidiaDomain+"gfd.timestamp", strconv.FormatInt(b.Timestamp.Unix(), 10))
	}
	b.set(nvidiaDomain+"gpu.present", "true")
	b.set(nvidiaDomain+"gpu.machine", cmp.Or(labelset.Value(b.Host.Machine), "unknown"))
	driver := b.Snapshot.Vendor(gpu.NVIDIA).Driver
	if version := driver.Version; version != "" {
		b.driver(version)
	}
	if cuda := driver.CUDA; cuda != (gpu.Version{}) {
		b.number(nvidiaDomain+"cuda.runtime-version.major", cuda.Major)
		b.number(nvidiaDomain+"cuda.runtime-version.minor", cuda.Minor)
		b.set(nvidiaDomain+"cuda.runtime-version.full", cuda.String())
		b.number(nvidiaDomain+"cuda.runtime.major", cuda.Major)
		b.number(nvidiaDomain+"cuda.runtime.minor", cuda.Minor)
	}
	if vgpu := b.Host.VGPU; vgpu != nil {
		b.set(nvidiaDomain+"vgpu.present", strconv.FormatBool(vgpu.Present))
		if version := labelset.Value(vgpu.DriverVersion); vgpu.Present && version != "" {
			b.set(nvidiaDomain+"vgpu.host-driver-version", version)
		}
		if branch := labelset.Value(vgpu.DriverBranch); vgpu.Present && branch != "" {
			b.set(nvidiaDomain+"vgpu.host-driver-branch", branch)
		}
	}
}

// driver adds the version as a whole and in up to three parts. Most versions have two, and then the third is empty.
func (b *builder) driver(version string) {
	b.set(nvidiaDomain+"cuda.driver-version.full", labelset.Value(version))
	pieces := strings.Split(version, ".")
	if len(pieces) < 2 || len(pieces) > 3 {
		return
	}
	pieces = append(pieces, "")
	for i, names := range [][2]string{{"major", "major"}, {"minor", "minor"}, {"revision", "rev"}} {
		piece := labelset.Value(pieces[i])
		b.set(nvidiaDomain+"cuda.driver-version."+names[0], piece)
		b.set(nvidiaDomain+"cuda.driver."+names[1], piece)
	}
}

func (b *builder) hardware() {
	capable := slices.ContainsFunc(b.gpus, func(g *gpu.GPU) bool { return g.MIG.Capable })
	b.set(nvidiaDomain+"mig.capable", strconv.FormatBool(capable))
	b.set(nvidiaDomain+"mps.capable", strconv.FormatBool(b.MPS))
	b.set(nvidiaDomain+"gpu.mode", b.mode())
	if clique := b.clique(); clique != "" {
		b.set(nvidiaDomain+"gpu.clique", clique)
	}
	b.islands()
	kinds := modelsOf(b.gpus)
	b.whole(nvidiaDomain+"gpu.", &kinds[0])
	if name := kinds[0].name; name != "" {
		shared := b.sharingOf(&kinds[0])
		b.set(nvidiaDomain+"gpu.product", labelset.Suffixed(name, shared.suffix()))
	}
	b.mig()
	if b.several() {
		for i := range kinds {
			if name := kinds[i].name; name != "" {
				b.whole(modelDomain+labelset.Short(name, labelset.MaxName-len(".sharing-strategy"))+".", &kinds[i])
			}
		}
	}
}

// several reports whether the node has GPUs of several models, including those that do not respond.
func (b *builder) several() bool {
	first := ""
	for i := range b.Snapshot.GPUs {
		name := labelset.Clean(b.Snapshot.GPUs[i].Product)
		if first != "" && name != "" && name != first {
			return true
		}
		first = cmp.Or(first, name)
	}
	return false
}

// mode returns the mode of all GPUs according to their PCI class.
func (b *builder) mode() string {
	const displayVGA, display3D = 0x0300, 0x0302
	first := b.Host.Classes[b.gpus[0].UUID] >> 8
	for _, g := range b.gpus {
		if b.Host.Classes[g.UUID]>>8 != first {
			return "unknown"
		}
	}
	switch first {
	case displayVGA:
		return "graphics"
	case display3D:
		return "compute"
	}
	return "unknown"
}

// clique returns the NVLink domain of all GPUs that are in one; empty when they differ.
func (b *builder) clique() string {
	var common gpu.Clique
	for _, g := range b.gpus {
		switch {
		case g.Clique == gpu.Clique{}:
		case common == gpu.Clique{}:
			common = g.Clique
		case common != g.Clique:
			return ""
		}
	}
	cluster := labelset.Clean(common.ClusterUUID)
	if cluster == "" {
		return ""
	}
	return labelset.Suffixed(cluster, fmt.Sprintf(".%d", common.ID))
}

// islands counts the groups of GPUs that are connected by NVLinks, directly or through other GPUs of the group.
func (b *builder) islands() {
	islands, known := b.Snapshot.Islands()
	if !known {
		return
	}
	largest := 0
	for _, island := range islands {
		largest = max(largest, len(island))
	}
	b.number(berthDomain+"nvlink.islands", len(islands))
	if largest > 0 {
		b.number(berthDomain+"nvlink.largest-island", largest)
	}
}

// model has the GPUs of one product.
type model struct {
	// name is clean, and empty for GPUs whose product the driver does not report.
	name string
	gpus []*gpu.GPU
}

// modelsOf returns the models with the most GPUs first, equal ones in the order of their names, and GPUs of an unknown product
// last.
func modelsOf(gpus []*gpu.GPU) []model {
	var kinds []model
	for _, g := range gpus {
		name := labelset.Clean(g.Product)
		at := slices.IndexFunc(kinds, func(m model) bool { return m.name == name })
		if at < 0 {
			at = len(kinds)
			kinds = append(kinds, model{name: name})
		}
		kinds[at].gpus = append(kinds[at].gpus, g)
	}
	slices.SortFunc(kinds, func(x, y model) int {
		if (x.name == "") != (y.name == "") {
			return cmp.Compare(y.name, x.name)
		}
		return cmp.Or(cmp.Compare(len(y.gpus), len(x.gpus)), cmp.Compare(x.name, y.name))
	})
	return kinds
}

// whole adds the labels about the GPUs of a model, whether or not they are partitioned.
func (b *builder) whole(prefix string, kind *model) {
	b.number(prefix+"count", len(kind.gpus))
	shared := b.sharingOf(kind)
	b.number(prefix+"replicas", shared.replicas)
	b.set(prefix+"sharing-strategy", shared.strategy)
	if at := slices.IndexFunc(kind.gpus, func(g *gpu.GPU) bool { return g.MemoryBytes>>20 != 0 }); at >= 0 {
		b.set(prefix+"memory", strconv.FormatUint(kind.gpus[at].MemoryBytes>>20, 10))
	}
	if at := slices.IndexFunc(kind.gpus, func(g *gpu.GPU) bool { return g.ComputeCapability.Major > 0 }); at >= 0 {
		capability := kind.gpus[at].ComputeCapability
		b.set(prefix+"family", family(capability))
		b.number(prefix+"compute.major", capability.Major)
		b.number(prefix+"compute.minor", capability.Minor)
	}
}

// family returns the generation of a GPU by its compute capability.
func family(capability gpu.Version) string {
	major, minor := capability.Major, capability.Minor
	switch {
	case major == 1:
		return "tesla"
	case major == 2:
		return "fermi"
	case major == 3:
		return "kepler"
	case major == 5:
		return "maxwell"
	case major == 6:
		return "pascal"
	case major == 7 && minor < 5:
		return "volta"
	case major == 7:
		return "turing"
	case major == 8 && minor < 9:
		return "ampere"
	case major == 8:
		return "ada-lovelace"
	case major == 9:
		return "hopper"
	case major == 10 || major == 12:
		return "blackwell"
	case major == 13:
		return "rubin"
	}
	return "undefined"
}
