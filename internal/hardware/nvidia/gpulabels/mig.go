package gpulabels

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/labelset"
)

// The strategies by which MIG devices are labeled; any other value means mixed.
const (
	migNone   = "none"
	migSingle = "single"
	migMixed  = "mixed"
)

// part is a MIG device with its GPU.
type part struct {
	gpu *gpu.GPU
	*gpu.MIGDevice
}

// mig adds the labels of the strategy.
func (b *builder) mig() {
	switch b.MIGStrategy {
	case migNone:
		return
	case migSingle:
		b.set(nvidiaDomain+"mig.strategy", migSingle)
		b.single()
	default:
		b.set(nvidiaDomain+"mig.strategy", migMixed)
		b.mixed()
	}
}

// single describes MIG devices as the node's GPUs. That requires that all GPUs are partitioned, and into one profile;
// any other layout is labeled as invalid.
func (b *builder) single() {
	var parted []*gpu.GPU
	valid := true
	for _, g := range b.gpus {
		if g.MIG.Enabled {
			parted = append(parted, g)
		}
		valid = valid && g.MIG.Enabled && len(g.MIG.Devices) > 0
	}
	if len(parted) == 0 {
		return
	}
	profiles := b.profiles(parted)
	if _, unknown := profiles[""]; !valid || unknown || len(profiles) != 1 {
		b.invalid(modelsOf(parted)[0].name)
		return
	}
	for profile, parts := range profiles {
		b.parts(nvidiaDomain+"gpu.", profile, parts, b.ResourceName)
	}
}

func (b *builder) invalid(name string) {
	if name != "" {
		b.set(nvidiaDomain+"gpu.product", labelset.Suffixed(name, "-MIG-INVALID"))
	}
	for _, key := range []string{"count", "replicas", "memory"} {
		b.number(nvidiaDomain+"gpu."+key, 0)
	}
	b.set(nvidiaDomain+"gpu.sharing-strategy", "")
}

// mixed adds labels for each profile beside those of the GPUs.
func (b *builder) mixed() {
	profiles := b.profiles(b.gpus)
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		if profile != "" {
			name := "mig-" + labelset.Short(profile, labelset.MaxName-len("mig-.sharing-strategy"))
			b.parts(nvidiaDomain+name+".", profile, profiles[profile], nvidiaDomain+"mig-"+profile)
		}
	}
}

// profiles returns the MIG devices of GPUs by their profile, in which a dot replaces the plus, as in resource names.
func (b *builder) profiles(gpus []*gpu.GPU) map[string][]part {
	profiles := map[string][]part{}
	for _, g := range gpus {
		if !g.MIG.Enabled {
			continue
		}
		for i := range g.MIG.Devices {
			device := &g.MIG.Devices[i]
			profile := labelset.Clean(strings.ReplaceAll(device.Profile, "+", "."))
			profiles[profile] = append(profiles[profile], part{g, device})
		}
	}
	return profiles
}

// parts adds the labels about the MIG devices of one profile. Without sharing they are advertised as the resource.
func (b *builder) parts(prefix, profile string, parts []part, resource string) {
	keys := make([]gpu.DeviceKey, len(parts))
	parents := make([]*gpu.GPU, len(parts))
	for i, p := range parts {
		keys[i] = gpu.DeviceKey{GPU: p.gpu.UUID, MIG: p.UUID}
		parents[i] = p.gpu
	}
	shared := b.common(keys, resource)
	b.number(prefix+"count", len(parts))
	b.number(prefix+"replicas", shared.replicas)
	b.set(prefix+"sharing-strategy", shared.strategy)
	if name := modelsOf(parents)[0].name; name != "" {
		b.set(prefix+"product", labelset.Suffixed(name, "-MIG-"+profile+shared.suffix()))
	}
	smallest := slices.MinFunc(parts, func(x, y part) int { return cmp.Compare(x.MemoryBytes, y.MemoryBytes) })
	b.set(prefix+"memory", strconv.FormatUint(smallest.MemoryBytes>>20, 10))
	b.attributes(prefix, parts)
	if instance, compute, ok := slicesOf(profile); ok {
		b.number(prefix+"slices.gi", instance)
		b.number(prefix+"slices.ci", compute)
	}
}

// attributes adds what each of the MIG devices has at least, unless the driver does not report it for one of them.
func (b *builder) attributes(prefix string, parts []part) {
	least := parts[0].Attributes
	for _, p := range parts {
		a := p.Attributes
		if a == (gpu.MIGAttributes{}) {
			return
		}
		least = gpu.MIGAttributes{
			Multiprocessors: min(least.Multiprocessors, a.Multiprocessors), CopyEngines: min(least.CopyEngines, a.CopyEngines),
			Decoders: min(least.Decoders, a.Decoders), Encoders: min(least.Encoders, a.Encoders),
			JPEGs: min(least.JPEGs, a.JPEGs), OFAs: min(least.OFAs, a.OFAs),
		}
	}
	b.number(prefix+"multiprocessors", least.Multiprocessors)
	b.number(prefix+"engines.copy", least.CopyEngines)
	b.number(prefix+"engines.decoder", least.Decoders)
	b.number(prefix+"engines.encoder", least.Encoders)
	b.number(prefix+"engines.jpeg", least.JPEGs)
	b.number(prefix+"engines.ofa", least.OFAs)
}

// slicesOf returns how many compute slices the GPU instance and the compute instance of a profile have: 3 and 3 for 3g.20gb,
// 3 and 1 for 1c.3g.20gb.
func slicesOf(profile string) (instance, compute int, ok bool) {
	digits, rest, ok := strings.Cut(profile, "c.")
	if n, err := strconv.Atoi(digits); ok && err == nil {
		compute, profile = n, rest
	}
	digits, _, ok = strings.Cut(profile, "g.")
	instance, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0, 0, false
	}
	return instance, cmp.Or(compute, instance), true
}
