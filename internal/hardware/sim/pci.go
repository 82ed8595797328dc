package sim

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlBusID returns the bus ID in NVML's format: eight domain digits, upper case.
func nvmlBusID(bdf string) string { return "0000" + strings.ToUpper(bdf) }

// sameBusID compares a bus ID of the kernel with one in any format that NVML accepts: with a domain of eight or four
// digits, or without one.
func sameBusID(bdf, typed string) bool {
	typed = strings.ToLower(typed)
	if strings.Count(typed, ":") == 1 {
		typed = "0000:" + typed
	}
	return typed == bdf || typed == "0000"+bdf
}

// splitBusID splits a bus ID such as "0000:1b:00.0", the only format in profiles and hardware.json.
func splitBusID(bdf string) (domain, bus, device uint32) {
	part := func(from, to int) uint32 {
		if len(bdf) < to {
			return 0
		}
		n, _ := strconv.ParseUint(bdf[from:to], 16, 32)
		return uint32(n)
	}
	return part(0, 4), part(5, 7), part(8, 10)
}

// pciInfo returns NVML's structure for a PCI function.
func pciInfo(bdf string, deviceID, subsystem uint32) nvml.PciInfo {
	domain, bus, device := splitBusID(bdf)
	info := nvml.PciInfo{Domain: domain, Bus: bus, Device: device, PciDeviceId: pciID(deviceID), PciSubSystemId: subsystem}
	copyText(info.BusId[:], nvmlBusID(bdf))
	copyText(info.BusIdLegacy[:], strings.ToUpper(bdf))
	return info
}

// pciID returns NVML's combination of device and vendor; 0 stays 0.
func pciID(device uint32) uint32 {
	if device == 0 {
		return 0
	}
	return device<<16 | vendorNVIDIA
}

// copyText copies the text into a C string.
func copyText(into []int8, text string) {
	for i := 0; i < len(text) && i < len(into)-1; i++ {
		into[i] = int8(text[i])
	}
}

// ancestor returns the closest level of the PCIe topology that two GPUs share.
func ancestor(a, b *gpuHardware) nvml.GpuTopologyLevel {
	shared := 0
	for shared < len(a.Path) && shared < len(b.Path) && a.Path[shared] == b.Path[shared] {
		shared++
	}
	switch {
	case shared > 0 && len(a.Path)-shared <= 1 && len(b.Path)-shared <= 1:
		return nvml.TOPOLOGY_SINGLE
	case shared > 0:
		return nvml.TOPOLOGY_MULTIPLE
	case a.Path[0][:7] == b.Path[0][:7]: // two root ports of one host bridge
		return nvml.TOPOLOGY_HOSTBRIDGE
	case a.NUMA == b.NUMA:
		return nvml.TOPOLOGY_NODE
	}
	return nvml.TOPOLOGY_SYSTEM
}

// bitmap sets one bit for each number of a kernel list, in words of 64 bits, as NVML's affinity calls do.
func bitmap(list string, words int) []uint {
	out := make([]uint, max(words, 0))
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		to := from
		if isRange {
			if to, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		for n := from; n <= to && n < 64*len(out); n++ {
			out[n/64] |= 1 << (n % 64)
		}
	}
	return out
}
