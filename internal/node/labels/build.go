package labels

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

// Input is everything that labels are made of.
type Input struct {
	Snapshot *gpu.Snapshot
	// Units are as what the devices are given out.
	Units []offer.Unit
	// ResourceName and MIGStrategy are those of the offer's settings.
	ResourceName string
	MIGStrategy  string
	Host         Host
	// Timestamp is the value of gfd.timestamp: when the agent began. Not the moment, which
	// would make other labels at each call. Zero leaves the label out.
	Timestamp time.Time
}

// Build computes the labels of a node; none for a node without GPUs.
func Build(in Input) Labels {
	labels := Labels{}
	if in.Snapshot == nil || len(in.Snapshot.GPUs) == 0 {
		return labels
	}
	b := &builder{Input: in, labels: labels, uses: map[gpu.DeviceKey]offer.Use{}}
	b.ResourceName = cmp.Or(in.ResourceName, offer.DefaultResource)
	for _, unit := range in.Units {
		if _, twice := b.uses[unit.Key]; !twice {
			b.uses[unit.Key] = unit.Use
		}
	}
	for i := range in.Snapshot.GPUs {
		if card := &in.Snapshot.GPUs[i]; card.Health.State != gpu.Gone {
			b.cards = append(b.cards, card)
		}
	}
	slices.SortFunc(b.cards, func(x, y *gpu.GPU) int {
		return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.UUID, y.UUID))
	})
	b.node()
	b.health()
	if len(b.cards) > 0 {
		b.hardware()
	}
	return labels
}

// builder is one call of Build.
type builder struct {
	Input
	labels Labels
	uses   map[gpu.DeviceKey]offer.Use
	// cards are those that answer, by index.
	cards []*gpu.GPU
}

func (b *builder) set(key, value string) { b.labels[key] = value }

func (b *builder) number(key string, value int) { b.set(key, strconv.Itoa(value)) }

// node adds what is so whether or not any card answers.
func (b *builder) node() {
	if !b.Timestamp.IsZero() {
		b.set(nvidiaDomain+"gfd.timestamp", strconv.FormatInt(b.Timestamp.Unix(), 10))
	}
	b.set(nvidiaDomain+"gpu.present", "true")
	b.set(nvidiaDomain+"gpu.machine", cmp.Or(fit(clean(b.Host.Machine), maxName), "unknown"))
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
		if version := fit(clean(vgpu.DriverVersion), maxName); vgpu.Present && version != "" {
			b.set(nvidiaDomain+"vgpu.host-driver-version", version)
		}
		if branch := fit(clean(vgpu.DriverBranch), maxName); vgpu.Present && branch != "" {
			b.set(nvidiaDomain+"vgpu.host-driver-branch", branch)
		}
	}
}

// driver adds the version in one piece and in up to three. Two pieces are usual, and then the third is empty.
func (b *builder) driver(version string) {
	b.set(nvidiaDomain+"cuda.driver-version.full", fit(clean(version), maxName))
	pieces := strings.Split(version, ".")
	if len(pieces) < 2 || len(pieces) > 3 {
		return
	}
	pieces = append(pieces, "")
	for i, names := range [][2]string{{"major", "major"}, {"minor", "minor"}, {"revision", "rev"}} {
		piece := fit(clean(pieces[i]), maxName)
		b.set(nvidiaDomain+"cuda.driver-version."+names[0], piece)
		b.set(nvidiaDomain+"cuda.driver."+names[1], piece)
	}
}

// health counts all cards that the node is known to have, those that do not answer too.
func (b *builder) health() {
	healthy := 0
	for i := range b.Snapshot.GPUs {
		if b.Snapshot.GPUs[i].Health.OK() {
			healthy++
		}
	}
	b.number(berthDomain+"gpu.healthy", healthy)
	b.number(berthDomain+"gpu.unhealthy", len(b.Snapshot.GPUs)-healthy)
}

func (b *builder) hardware() {
	capable := slices.ContainsFunc(b.cards, func(card *gpu.GPU) bool { return card.MIG.Capable })
	b.set(nvidiaDomain+"mig.capable", strconv.FormatBool(capable))
	b.set(nvidiaDomain+"mps.capable", strconv.FormatBool(len(offer.MPSUnits(b.Units)) > 0))
	b.set(nvidiaDomain+"gpu.mode", b.mode())
	if clique := b.clique(); clique != "" {
		b.set(nvidiaDomain+"gpu.clique", clique)
	}
	b.islands()
	kinds := modelsOf(b.cards)
	b.whole(nvidiaDomain+"gpu.", &kinds[0])
	if name := kinds[0].name; name != "" {
		shared := b.sharingOf(&kinds[0])
		b.set(nvidiaDomain+"gpu.product", suffixed(name, shared.suffix()))
	}
	b.mig()
	if b.several() {
		for i := range kinds {
			if name := kinds[i].name; name != "" {
				b.whole(modelDomain+short(name, maxName-len(".sharing-strategy"))+".", &kinds[i])
			}
		}
	}
}

// several tells whether the node has cards of several models, those that do not answer included.
func (b *builder) several() bool {
	first := ""
	for i := range b.Snapshot.GPUs {
		name := clean(b.Snapshot.GPUs[i].Product)
		if first != "" && name != "" && name != first {
			return true
		}
		first = cmp.Or(first, name)
	}
	return false
}

// mode is what all cards are by their PCI class.
func (b *builder) mode() string {
	const displayVGA, display3D = 0x0300, 0x0302
	first := b.Host.Classes[b.cards[0].UUID] >> 8
	for _, card := range b.cards {
		if b.Host.Classes[card.UUID]>>8 != first {
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

// clique is the NVLink domain that all cards with one agree on; empty otherwise.
func (b *builder) clique() string {
	var common gpu.Clique
	for _, card := range b.cards {
		switch {
		case card.Clique == gpu.Clique{}:
		case common == gpu.Clique{}:
			common = card.Clique
		case common != card.Clique:
			return ""
		}
	}
	cluster := clean(common.ClusterUUID)
	if cluster == "" {
		return ""
	}
	return suffixed(cluster, fmt.Sprintf(".%d", common.ID))
}

// islands counts the groups of cards that NVLinks join, directly or over other cards of the group.
func (b *builder) islands() {
	topology := b.Snapshot.Topology
	if len(topology) != len(b.Snapshot.GPUs) {
		return
	}
	seen := make([]bool, len(topology))
	for i := range seen { // a card that does not answer joins nobody
		seen[i] = b.Snapshot.GPUs[i].Health.State == gpu.Gone
	}
	islands, largest := 0, 0
	for start := range topology {
		if seen[start] {
			continue
		}
		seen[start] = true
		group := []int{start}
		for at := 0; at < len(group); at++ {
			for next, link := range topology[group[at]] {
				if link.Kind == gpu.LinkNVLink && link.Count > 0 && !seen[next] {
					seen[next] = true
					group = append(group, next)
				}
			}
		}
		if len(group) > 1 {
			islands++
			largest = max(largest, len(group))
		}
	}
	b.number(berthDomain+"nvlink.islands", islands)
	if largest > 0 {
		b.number(berthDomain+"nvlink.largest-island", largest)
	}
}

// model is the cards of one product.
type model struct {
	// name is clean, and empty for cards whose product the driver does not say.
	name  string
	cards []*gpu.GPU
}

// modelsOf puts the model with the most cards first, equals in the order of their names, and cards
// of no known product last.
func modelsOf(cards []*gpu.GPU) []model {
	var kinds []model
	for _, card := range cards {
		name := clean(card.Product)
		at := slices.IndexFunc(kinds, func(m model) bool { return m.name == name })
		if at < 0 {
			at = len(kinds)
			kinds = append(kinds, model{name: name})
		}
		kinds[at].cards = append(kinds[at].cards, card)
	}
	slices.SortFunc(kinds, func(x, y model) int {
		if (x.name == "") != (y.name == "") {
			return cmp.Compare(y.name, x.name)
		}
		return cmp.Or(cmp.Compare(len(y.cards), len(x.cards)), cmp.Compare(x.name, y.name))
	})
	return kinds
}

// whole adds what the cards of a model are, whether or not they are partitioned.
func (b *builder) whole(prefix string, kind *model) {
	b.number(prefix+"count", len(kind.cards))
	shared := b.sharingOf(kind)
	b.number(prefix+"replicas", shared.replicas)
	b.set(prefix+"sharing-strategy", shared.strategy)
	if at := slices.IndexFunc(kind.cards, func(c *gpu.GPU) bool { return c.MemoryBytes>>20 != 0 }); at >= 0 {
		b.set(prefix+"memory", strconv.FormatUint(kind.cards[at].MemoryBytes>>20, 10))
	}
	if at := slices.IndexFunc(kind.cards, func(c *gpu.GPU) bool { return c.ComputeCapability.Major > 0 }); at >= 0 {
		capability := kind.cards[at].ComputeCapability
		b.set(prefix+"family", family(capability))
		b.number(prefix+"compute.major", capability.Major)
		b.number(prefix+"compute.minor", capability.Minor)
	}
}

// family is the generation of a card by its compute capability.
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
