package labels

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// part is a MIG device with its card.
type part struct {
	card *gpu.GPU
	*gpu.MIGDevice
}

// mig adds what the strategy asks for.
func (b *builder) mig() {
	switch b.MIGStrategy {
	case offer.MIGNone:
		return
	case offer.MIGSingle:
		b.set(nvidiaDomain+"mig.strategy", offer.MIGSingle)
		b.single()
	default:
		b.set(nvidiaDomain+"mig.strategy", offer.MIGMixed)
		b.mixed()
	}
}

// single lets the MIG devices stand for the node's GPUs. That takes cards that are all partitioned, and all
// into one profile; for any other layout the labels promise nothing.
func (b *builder) single() {
	var parted []*gpu.GPU
	valid := true
	for _, card := range b.cards {
		if card.MIG.Enabled {
			parted = append(parted, card)
		}
		valid = valid && card.MIG.Enabled && len(card.MIG.Devices) > 0
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
		b.set(nvidiaDomain+"gpu.product", suffixed(name, "-MIG-INVALID"))
	}
	for _, key := range []string{"count", "replicas", "memory"} {
		b.number(nvidiaDomain+"gpu."+key, 0)
	}
	b.set(nvidiaDomain+"gpu.sharing-strategy", "")
}

// mixed adds labels for each profile beside those of the cards.
func (b *builder) mixed() {
	profiles := b.profiles(b.cards)
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		if profile != "" {
			name := "mig-" + short(profile, maxName-len("mig-.sharing-strategy"))
			b.parts(nvidiaDomain+name+".", profile, profiles[profile], nvidiaDomain+"mig-"+profile)
		}
	}
}

// profiles are the MIG devices of cards by their profile, whose plus is a dot as in names of resources.
func (b *builder) profiles(cards []*gpu.GPU) map[string][]part {
	profiles := map[string][]part{}
	for _, card := range cards {
		if !card.MIG.Enabled {
			continue
		}
		for i := range card.MIG.Devices {
			device := &card.MIG.Devices[i]
			profile := clean(strings.ReplaceAll(device.Profile, "+", "."))
			profiles[profile] = append(profiles[profile], part{card, device})
		}
	}
	return profiles
}

// parts adds what the MIG devices of one profile are. Unshared they would be given out as the resource.
func (b *builder) parts(prefix, profile string, parts []part, resource string) {
	keys := make([]gpu.DeviceKey, len(parts))
	parents := make([]*gpu.GPU, len(parts))
	for i, p := range parts {
		keys[i] = gpu.DeviceKey{GPU: p.card.UUID, MIG: p.UUID}
		parents[i] = p.card
	}
	shared := b.common(keys, resource)
	b.number(prefix+"count", len(parts))
	b.number(prefix+"replicas", shared.replicas)
	b.set(prefix+"sharing-strategy", shared.strategy)
	if name := modelsOf(parents)[0].name; name != "" {
		b.set(prefix+"product", suffixed(name, "-MIG-"+profile+shared.suffix()))
	}
	smallest := slices.MinFunc(parts, func(x, y part) int { return cmp.Compare(x.MemoryBytes, y.MemoryBytes) })
	b.set(prefix+"memory", strconv.FormatUint(smallest.MemoryBytes>>20, 10))
	b.attributes(prefix, parts)
	if instance, compute, ok := slicesOf(profile); ok {
		b.number(prefix+"slices.gi", instance)
		b.number(prefix+"slices.ci", compute)
	}
}

// attributes adds what each of the MIG devices has at least, unless the driver does not say it of one.
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

// slicesOf reads how many compute slices the GPU instance and the compute instance of a profile
// have: 3 and 3 for 3g.20gb, 3 and 1 for 1c.3g.20gb.
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
