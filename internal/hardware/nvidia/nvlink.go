package nvidia

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// linkCounts are a GPU's active NVLinks by their remote ends.
type linkCounts struct {
	// fabric counts those into NVSwitches.
	fabric int
	// direct counts those to other devices, in the order of their addresses.
	direct []directLinks
	// up are the numbers of all active links.
	up []int
	// exist is true for a GPU that has NVLinks, active or not.
	exist bool
}

type directLinks struct {
	peer  gpu.PCIAddress
	count int
}

func (c linkCounts) equal(d linkCounts) bool {
	return c.fabric == d.fabric && slices.Equal(c.direct, d.direct)
}

func (c linkCounts) to(peer gpu.PCIAddress) int {
	for _, links := range c.direct {
		if links.peer == peer {
			return links.count
		}
	}
	return 0
}

// linkReader keeps the fixed properties of a GPU's NVLinks, so that a scan reads only their states.
type linkReader struct {
	// probed is false until every possible link was tried once.
	probed bool
	// numbers are the links that the GPU has.
	numbers []int
	remotes map[int]remote
}

// remote is the far end of an NVLink.
type remote struct {
	kind remoteKind
	peer gpu.PCIAddress
}

type remoteKind int

const (
	remoteOther remoteKind = iota // neither a GPU nor a switch
	remoteSwitch
	remoteDirect
)

// readLinks counts a GPU's active links.
func (a *work) readLinks(q *caller, target identity) linkCounts {
	reader := a.links[target.uuid]
	if reader == nil {
		reader = &linkReader{remotes: map[int]remote{}}
		a.links[target.uuid] = reader
	}
	active := reader.active(q, target.device)
	if q.lost != nil || q.broken != nil {
		return linkCounts{}
	}
	counts := linkCounts{up: active, exist: len(reader.numbers) > 0}
	direct := map[gpu.PCIAddress]int{}
	for _, number := range active {
		switch end := a.remote(q, target.device, reader, number); end.kind {
		case remoteSwitch:
			counts.fabric++
		case remoteDirect:
			direct[end.peer]++
		}
	}
	for peer, count := range direct {
		counts.direct = append(counts.direct, directLinks{peer, count})
	}
	slices.SortFunc(counts.direct, func(x, y directLinks) int { return comparePCI(x.peer, y.peer) })
	return counts
}

// active lists the links that are up. The first call tries all numbers; later ones only the links that the GPU has, or the
// first number of a GPU that had none, whose links may come up late.
func (r *linkReader) active(q *caller, d nvml.Device) []int {
	numbers := r.numbers
	switch {
	case !r.probed:
		numbers = make([]int, nvml.NVLINK_MAX_LINKS)
		for i := range numbers {
			numbers[i] = i
		}
	case len(numbers) == 0:
		numbers = []int{0}
	}
	probing := !r.probed
	var has, up []int
	for _, number := range numbers {
		var last nvml.Return
		state, ok := invokeAt(q, "nvmlDeviceGetNvLinkState", number, func() (nvml.EnableState, nvml.Return) {
			var state nvml.EnableState
			state, last = d.GetNvLinkState(number)
			return state, last
		})
		switch {
		case q.lost != nil || q.broken != nil:
			return nil
		case ok:
			has = append(has, number)
			if state == nvml.FEATURE_ENABLED {
				up = append(up, number)
			}
		case !unsupported(last):
			has = append(has, number) // transient: read it again
		}
		if probing && last == nvml.ERROR_INVALID_ARGUMENT {
			break // past the last link of this model
		}
	}
	if probing {
		r.probed, r.numbers = true, has
	} else if len(r.numbers) == 0 && len(has) > 0 {
		r.probed = false
		return r.active(q, d)
	}
	return up
}

// remote returns the remote end of a link. It is read once for each link.
func (a *work) remote(q *caller, d nvml.Device, reader *linkReader, number int) remote {
	if end, ok := reader.remotes[number]; ok {
		return end
	}
	kind, typed := nvml.IntNvLinkDeviceType(nvml.NVLINK_DEVICE_TYPE_UNKNOWN), false
	if a.exports("nvmlDeviceGetNvLinkRemoteDeviceType") {
		kind, typed = invoke(q, "nvmlDeviceGetNvLinkRemoteDeviceType", func() (nvml.IntNvLinkDeviceType, nvml.Return) {
			return d.GetNvLinkRemoteDeviceType(number)
		})
	}
	if typed && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
		// Switches since the fifth generation are not PCI devices and have no address.
		reader.remotes[number] = remote{kind: remoteSwitch}
		return reader.remotes[number]
	}
	info, located := invoke(q, "nvmlDeviceGetNvLinkRemotePciInfo", func() (nvml.PciInfo, nvml.Return) {
		return d.GetNvLinkRemotePciInfo(number)
	})
	if !located {
		return remote{}
	}
	end := remote{kind: remoteDirect, peer: addressOf(info)}
	switch {
	case typed && kind == nvml.NVLINK_DEVICE_TYPE_IBMNPU:
		end.kind = remoteOther
	case (!typed || kind == nvml.NVLINK_DEVICE_TYPE_UNKNOWN) && a.sys.isBridge(end.peer):
		end.kind = remoteSwitch
	}
	reader.remotes[number] = end
	return end
}

// isBridge reports whether a PCI device is a bridge of the class that NVSwitches have (0x0680).
func (t tree) isBridge(address gpu.PCIAddress) bool {
	return strings.HasPrefix(t.line(path.Join(pciFolder(address), "class")), "0x0680")
}

// linksBetween returns the NVLinks between two GPUs. GPUs on one NVSwitch fabric reach each other with all the links that both
// have into it; GPUs that registered with different cliques of the fabric do not reach each other.
func linksBetween(x, y topologyNode) (count int, switched bool) {
	direct := min(x.links.to(y.pci), y.links.to(x.pci))
	fabric := min(x.links.fabric, y.links.fabric)
	none := gpu.Clique{}
	if x.clique != y.clique && x.clique != none && y.clique != none {
		fabric = 0
	}
	return cmp.Or(fabric, direct), fabric > 0
}
