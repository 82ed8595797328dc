package sim

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// link runs a call on one NVLink. Without NVLinks the call is not supported; a link number that the GPU does not have
// is an invalid argument, as in NVML.
func link[T any](d *device, call string, number int, read func(snapshot, nvlink) (T, nvml.Return)) (T, nvml.Return) {
	return get(d, call, func(c snapshot) (T, nvml.Return) {
		var zero T
		switch {
		case c.gpu.Model.NVLinks == 0:
			return zero, nvml.ERROR_NOT_SUPPORTED
		case number < 0 || number >= c.gpu.Model.NVLinks:
			return zero, nvml.ERROR_INVALID_ARGUMENT
		case number >= len(c.gpu.Links): // the GPU has the link, but nothing is connected to it
			return read(c, nvlink{Peer: -1})
		}
		return read(c, c.gpu.Links[number])
	})
}

// up reports whether an NVLink carries traffic.
func (c snapshot) up(number int) bool {
	return number < len(c.gpu.Links) && !slices.Contains(c.state.LinksDown, number) && c.peerAnswers(c.gpu.Links[number])
}

// peerAnswers returns false when the GPU at the other end is gone: a link is trained at both ends or at neither.
func (c snapshot) peerAnswers(l nvlink) bool {
	if l.Peer < 0 {
		return true
	}
	peer := &c.view.st.GPUs[l.Peer]
	return !peer.Removed && !peer.Lost
}

func (d *device) GetNvLinkState(number int) (nvml.EnableState, nvml.Return) {
	return link(d, "GetNvLinkState", number, func(c snapshot, _ nvlink) (nvml.EnableState, nvml.Return) {
		if c.up(number) {
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	})
}

// GetNvLinkRemotePciInfo returns the other end, a GPU or an NVSwitch. A switch that the host cannot see has bus ID
// zero. A link that is down has no remote end.
func (d *device) GetNvLinkRemotePciInfo(number int) (nvml.PciInfo, nvml.Return) {
	return link(d, "GetNvLinkRemotePciInfo", number, func(c snapshot, l nvlink) (nvml.PciInfo, nvml.Return) {
		if !c.up(number) {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return pciInfo(l.Remote, l.Device, 0), nvml.SUCCESS
	})
}

func (d *device) GetNvLinkRemoteDeviceType(number int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return link(d, "GetNvLinkRemoteDeviceType", number, func(c snapshot, l nvlink) (nvml.IntNvLinkDeviceType, nvml.Return) {
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
	return link(d, "GetNvLinkVersion", number, func(c snapshot, _ nvlink) (uint32, nvml.Return) {
		return c.gpu.Model.NVLinkVersion, nvml.SUCCESS
	})
}

func (d *device) GetNvLinkCapability(number int, capability nvml.NvLinkCapability) (uint32, nvml.Return) {
	return link(d, "GetNvLinkCapability", number, func(c snapshot, l nvlink) (uint32, nvml.Return) {
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

// GetNvLinkErrorCounter always returns 0: a simulated link is either up without errors or down.
func (d *device) GetNvLinkErrorCounter(number int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return link(d, "GetNvLinkErrorCounter", number, func(snapshot, nvlink) (uint64, nvml.Return) { return 0, nvml.SUCCESS })
}

// GetGpuFabricInfo returns the clique. Before Hopper, GPUs do not register with a fabric.
func (d *device) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	return get(d, "GetGpuFabricInfo", func(c snapshot) (nvml.GpuFabricInfo, nvml.Return) {
		f := c.gpu.Fabric
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

// GetP2PStatus reports peer access over NVLink when a link is up, and over PCIe between all GPUs.
func (d *device) GetP2PStatus(handle nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	return pair(d, "GetP2PStatus", handle, func(a, b snapshot) nvml.GpuP2PStatus {
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

// linksBetween counts the NVLinks that connect two GPUs directly. For GPUs on the same fabric it adds the smaller
// number of links that either has up.
func linksBetween(a, b snapshot) int {
	direct, fabricA, fabricB := 0, 0, 0
	for number, l := range a.gpu.Links {
		switch {
		case !a.up(number):
		case l.Peer < 0:
			fabricA++
		case &a.view.hw.GPUs[l.Peer] == b.gpu:
			direct++
		}
	}
	for number, l := range b.gpu.Links {
		if l.Peer < 0 && b.up(number) {
			fabricB++
		}
	}
	return direct + min(fabricA, fabricB)
}
