package placement

import (
	"fmt"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// maxNVLinks bounds the NVLinks of one pair.
const maxNVLinks = gpu.MaxNVLinks

// Level is the quality of one link: 0 for no link (a set of one GPU), then an unknown path, then the PCIe paths from
// SYS up to PSB, then NVLink counts. One NVLink is better than every PCIe path.
type Level uint16

const (
	levelNone    Level = 0
	levelUnknown Level = 1
	levelNVLink        = levelUnknown + Level(gpu.PathSystem) + 1 // one NVLink
)

// levelOf returns the level of a link. A pair with NVLinks does not use PCIe, so its path is ignored.
func levelOf(link gpu.Link) Level {
	switch {
	case link.Count > 0:
		return levelNVLink + Level(link.Count) - 1
	case link.Path == gpu.PathUnknown:
		return levelUnknown
	}
	return levelNVLink - Level(link.Path)
}

// NVLink tells whether the level is one of NVLinks.
func (l Level) NVLink() bool { return l >= levelNVLink }

// nearness returns 6 for two GPUs on one board down to 1 for SYS, and 0 for unknown.
func nearness(path gpu.PCIPath) int {
	if path == gpu.PathUnknown {
		return 0
	}
	return int(gpu.PathSystem-path) + 1
}

// String returns nvidia-smi's letters: NV#, PIX, SYS and so on; "-" for no link.
func (l Level) String() string {
	switch {
	case l == levelNone:
		return "-"
	case l >= levelNVLink:
		return gpu.Link{Kind: gpu.LinkNVLink, Count: int(l-levelNVLink) + 1}.Letters()
	case l == levelUnknown:
		return gpu.PathUnknown.Letters()
	}
	return gpu.PCIPath(levelNVLink - l).Letters()
}

// Score is the value of a set of GPUs by itself, regardless of what else is available.
type Score struct {
	// Bottleneck is the smallest edge of the set's maximum spanning tree.
	Bottleneck Level
	// NVLinks is the sum of the NVLink counts over all pairs of the set.
	NVLinks int
	// PCIe is the sum of PCIe nearness over all pairs: 6 for PSB, 5 PIX, 4 PXB, 3 PHB, 2 NODE, 1 SYS, 0 unknown.
	PCIe int
	// NUMANodes is how many NUMA nodes the set spans. GPUs with an unknown node count as one node together.
	NUMANodes int
}

func (s Score) String() string {
	return fmt.Sprintf("bottleneck %s, NVLinks %d, PCIe %d, NUMA nodes %d", s.Bottleneck, s.NVLinks, s.PCIe, s.NUMANodes)
}

// Packing is how many disjoint fully linked sets a set contains, counted independently for each size.
type Packing struct {
	Eights int
	Fours  int
	Twos   int
}

func (p Packing) String() string {
	return fmt.Sprintf("8s:%d 4s:%d 2s:%d", p.Eights, p.Fours, p.Twos)
}

// packingSizes are the sizes of a Packing, in order of priority.
var packingSizes = [...]int{8, 4, 2}

// A key is a Score and a Packing in one number, so that comparing two sets is comparing two numbers; higher is better.
// From the top: bottleneck, NVLinks, PCIe, NUMA nodes (inverted, since fewer are better), eights, fours, twos. Each
// field fits the maximum for 32 GPUs with maxNVLinks.
type key uint64

const (
	twosBits    = 5
	foursBits   = 4
	eightsBits  = 3
	packingBits = twosBits + foursBits + eightsBits
	numaBits    = 6
	pcieBits    = 12
	nvlinkBits  = 17

	numaShift   = packingBits
	pcieShift   = numaShift + numaBits
	nvlinkShift = pcieShift + pcieBits
	levelShift  = nvlinkShift + nvlinkBits

	numaMask  = 1<<numaBits - 1
	totalMask = key(1<<levelShift - 1<<pcieShift) // NVLinks and PCIe, which are additive
)

func pairKey(link gpu.Link) key {
	return key(link.Count)<<nvlinkShift | key(nearness(link.Path))<<pcieShift
}

func makeKey(bottleneck Level, totals key, numaNodes int) key {
	return key(bottleneck)<<levelShift | totals | key(numaMask-numaNodes)<<numaShift
}

func (k key) score() Score {
	return Score{
		Bottleneck: Level(k >> levelShift),
		NVLinks:    int(k >> nvlinkShift & (1<<nvlinkBits - 1)),
		PCIe:       int(k >> pcieShift & (1<<pcieBits - 1)),
		NUMANodes:  numaMask - int(k>>numaShift&numaMask),
	}
}

// makePacking packs the counts of packingSizes into the low bits of a key.
func makePacking(counts [len(packingSizes)]int) uint16 {
	return uint16(counts[0]<<(foursBits+twosBits) | counts[1]<<twosBits | counts[2])
}

func unpackPacking(packed uint16) Packing {
	return Packing{
		Eights: int(packed >> (foursBits + twosBits)),
		Fours:  int(packed >> twosBits & (1<<foursBits - 1)),
		Twos:   int(packed & (1<<twosBits - 1)),
	}
}
