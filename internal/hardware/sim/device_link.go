package sim

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// link is a call about one NVLink. A card without NVLinks does not support it; a number beyond
// the card's links is an invalid argument, as in NVML.
func link[T any](d *device, call string, number int, read func(condition, nvlink) (T, nvml.Return)) (T, nvml.Return) {
	return get(d, call, func(c condition) (T, nvml.Return) {
		var zero T
		switch {
		case c.card.Model.NVLinks == 0:
			return zero, nvml.ERROR_NOT_SUPPORTED
		case number < 0 || number >= c.card.Model.NVLinks:
			return zero, nvml.ERROR_INVALID_ARGUMENT
		case number >= len(c.card.Links): // the card has the link, nothing is connected to it
			return read(c, nvlink{Peer: -1})
		}
		return read(c, c.card.Links[number])
	})
}

// up tells whether an NVLink carries traffic.
func (c condition) up(number int) bool {
	return number < len(c.card.Links) && !slices.Contains(c.state.LinksDown, number) && c.peerAnswers(c.card.Links[number])
}

// peerAnswers is false when the GPU at the other end is gone: the link trains at both ends or at none.
func (c condition) peerAnswers(l nvlink) bool {
	if l.Peer < 0 {
		return true
	}
	peer := &c.view.st.GPUs[l.Peer]
	return !peer.Removed && !peer.Lost
}

func (d *device) GetNvLinkState(number int) (nvml.EnableState, nvml.Return) {
	return link(d, "GetNvLinkState", number, func(c condition, _ nvlink) (nvml.EnableState, nvml.Return) {
		if c.up(number) {
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	})
}

// GetNvLinkRemotePciInfo names the other end: a GPU, or an NVSwitch. A switch that the host
// does not see has bus ID zero. A link that is down has no other end.
func (d *device) GetNvLinkRemotePciInfo(number int) (nvml.PciInfo, nvml.Return) {
	return link(d, "GetNvLinkRemotePciInfo", number, func(c condition, l nvlink) (nvml.PciInfo, nvml.Return) {
		if !c.up(number) {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return pciInfo(l.Remote, l.Device, 0), nvml.SUCCESS
	})
}

func (d *device) GetNvLinkRemoteDeviceType(number int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return link(d, "GetNvLinkRemoteDeviceType", number, func(c condition, l nvlink) (nvml.IntNvLinkDeviceType, nvml.Return) {
		switch {
		case !c.up(number):
			return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.ERROR_NOT_SUPPORTED
		case l.Peer < 0:
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	})
}

func (d *device) GetNvLinkVersion(number int) (uint32, nvml.Return) {
	return link(d, "GetNvLinkVersion", number, func(c condition, _ nvlink) (uint32, nvml.Return) {
		return c.card.Model.NVLinkVersion, nvml.SUCCESS
	})
}

func (d *device) GetNvLinkCapability(number int, capability nvml.NvLinkCapability) (uint32, nvml.Return) {
	return link(d, "GetNvLinkCapability", number, func(c condition, l nvlink) (uint32, nvml.Return) {
		has := false
		switch capability {
		case nvml.NVLINK_CAP_P2P_SUPPORTED, nvml.NVLINK_CAP_P2P_ATOMICS, nvml.NVLINK_CAP_VALID:
			has = c.up(number)
		case nvml.NVLINK_CAP_SYSMEM_ACCESS, nvml.NVLINK_CAP_SYSMEM_ATOMICS:
			has = true
		case nvml.NVLINK_CAP_SLI_BRIDGE:
		default:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		if has {
			return 1, nvml.SUCCESS
		}
		return 0, nvml.SUCCESS
	})
}

// GetNvLinkErrorCounter counts nothing: a simulated link is up without errors, or down.
func (d *device) GetNvLinkErrorCounter(number int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return link(d, "GetNvLinkErrorCounter", number, func(condition, nvlink) (uint64, nvml.Return) { return 0, nvml.SUCCESS })
}

// GetGpuFabricInfo tells the clique. Cards of before Hopper have no fabric registration.
func (d *device) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	return get(d, "GetGpuFabricInfo", func(c condition) (nvml.GpuFabricInfo, nvml.Return) {
		f := c.card.Fabric
		if !f.Registered {
			return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		switch c.state.Fabric {
		case FabricNotStarted:
			return nvml.GpuFabricInfo{State: uint8(nvml.GPU_FABRIC_STATE_NOT_STARTED)}, nvml.SUCCESS
		case FabricInProgress:
			return nvml.GpuFabricInfo{State: uint8(nvml.GPU_FABRIC_STATE_IN_PROGRESS)}, nvml.SUCCESS
		case FabricFailed:
			return nvml.GpuFabricInfo{State: uint8(nvml.GPU_FABRIC_STATE_COMPLETED), Status: uint32(nvml.ERROR_UNKNOWN)}, nvml.SUCCESS
		}
		return nvml.GpuFabricInfo{
			ClusterUuid: uuidBytes(f.ClusterUUID), CliqueId: f.Clique,
			State: uint8(nvml.GPU_FABRIC_STATE_COMPLETED), Status: uint32(nvml.SUCCESS),
		}, nvml.SUCCESS
	})
}

func (d *device) GetGpuFabricInfo_v4() (nvml.GpuFabricInfo_v4, nvml.Return) {
	info, ret := d.GetGpuFabricInfo()
	out := nvml.GpuFabricInfo_v4{ClusterUuid: info.ClusterUuid, State: info.State, Status: info.Status}
	if ret == nvml.SUCCESS {
		out.NumCliques = 1
		out.Cliques[0] = nvml.GpuFabricClique_v1{Id: info.CliqueId}
	}
	return out, ret
}

func uuidBytes(text string) (out [16]uint8) {
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err == nil {
		copy(out[:], raw)
	}
	return out
}

// GetP2PStatus: over NVLink when there is one up, over PCIe between all cards.
func (d *device) GetP2PStatus(handle nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	return pair(d, "GetP2PStatus", handle, func(a, b condition) nvml.GpuP2PStatus {
		linked := linksBetween(a, b) > 0
		switch {
		case index == nvml.P2P_CAPS_INDEX_NVLINK && !linked, index == nvml.P2P_CAPS_INDEX_ATOMICS && !linked:
			return nvml.P2P_STATUS_NOT_SUPPORTED
		case index < nvml.P2P_CAPS_INDEX_READ || index >= nvml.P2P_CAPS_INDEX_UNKNOWN:
			return nvml.P2P_STATUS_UNKNOWN
		}
		return nvml.P2P_STATUS_OK
	})
}

// linksBetween counts the NVLinks that join two cards directly, or that each has up into
// the fabric that both are on (the smaller number).
func linksBetween(a, b condition) int {
	direct, fabricA, fabricB := 0, 0, 0
	for number, l := range a.card.Links {
		switch {
		case !a.up(number):
		case l.Peer < 0:
			fabricA++
		case &a.view.hw.GPUs[l.Peer] == b.card:
			direct++
		}
	}
	for number, l := range b.card.Links {
		if l.Peer < 0 && b.up(number) {
			fabricB++
		}
	}
	return direct + min(fabricA, fabricB)
}
