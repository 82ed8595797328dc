package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/hardware/sim/profile"
)

// The static majors of NVIDIA and DRM, and the ranges that the kernel assigns dynamically
// (Documentation/admin-guide/devices.txt).
const (
	nvidiaMajor       = 195
	drmMajor          = 226
	dynamicFirst      = 384
	dynamicLast       = 511
	procDevicesLength = 1 << 20
)

// majors are the major numbers of the simulated device nodes. No driver of this kernel uses them, so that opening a
// simulated node returns ENXIO and never reaches real hardware.
type majors struct {
	NVIDIA uint32 `json:"nvidia"`
	UVM    uint32 `json:"nvidiaUVM"`
	Caps   uint32 `json:"nvidiaCaps"`
	DRM    uint32 `json:"drm"`
	// The majors of the machine's extras; 0 for an extra that it does not have. Verbs replaces InfiniBand's own major,
	// which reaches real adapters.
	GDRCopy uint32 `json:"gdrdrv,omitempty"`
	GDS     uint32 `json:"nvidiaFS,omitempty"`
	Verbs   uint32 `json:"infinibandVerbs,omitempty"`
	IMEX    uint32 `json:"nvidiaCapsIMEXChannels,omitempty"`
}

// keep resets the majors of extras that the machine does not have.
func (m *majors) keep(extras []string) {
	for name, number := range map[string]*uint32{
		profile.GDRCopy: &m.GDRCopy, profile.GDS: &m.GDS, profile.MOFED: &m.Verbs, profile.IMEX: &m.IMEX,
	} {
		if !slices.Contains(extras, name) {
			*number = 0
		}
	}
}

// chooseMajors returns unused majors. It takes dynamic ones from the end of the range, which the kernel uses last, so
// that a module loaded later does not get the same major.
func chooseMajors(procDevices string) (majors, error) {
	used, err := usedMajors(procDevices)
	if err != nil {
		return majors{}, err
	}
	if used[nvidiaMajor] {
		return majors{}, fmt.Errorf("choose device numbers: major %d is in use according to %s, so this machine has a real NVIDIA driver "+
			"and simulated nodes would open real GPUs; simulate on a machine without one, or without device nodes "+
			"(--no-device-nodes)", nvidiaMajor, procDevices)
	}
	const needed = 7
	chosen := majors{NVIDIA: nvidiaMajor, DRM: drmMajor}
	var free []uint32
	for major := uint32(dynamicFirst); major <= dynamicLast && len(free) < needed; major++ {
		if !used[major] {
			free = append(free, major)
		}
	}
	if len(free) < needed {
		return majors{}, fmt.Errorf("choose device numbers: fewer than %d free majors between %d and %d in %s",
			needed, dynamicFirst, dynamicLast, procDevices)
	}
	chosen.UVM, chosen.Caps = free[0], free[1]
	chosen.GDRCopy, chosen.GDS, chosen.Verbs, chosen.IMEX = free[3], free[4], free[5], free[6]
	if used[drmMajor] { // a real display adapter uses it
		chosen.DRM = free[2]
	}
	return chosen, nil
}

// usedMajors returns the majors of the character devices in a /proc/devices; none if the file does not exist.
func usedMajors(path string) (map[uint32]bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read device numbers in use: %w", err)
	}
	return parseMajors(string(content[:min(len(content), procDevicesLength)])), nil
}

func parseMajors(text string) map[uint32]bool {
	used := map[uint32]bool{}
	character := false
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 2 && fields[1] == "devices:":
			character = fields[0] == "Character"
		case character && len(fields) >= 2:
			if major, err := strconv.ParseUint(fields[0], 10, 12); err == nil {
				used[uint32(major)] = true
			}
		}
	}
	return used
}

// procDevices returns the content of /proc/devices of the simulated machine.
func (hw *hardware) procDevices(st *state) string {
	type line struct {
		major uint32
		name  string
	}
	lines := []line{{1, "mem"}, {5, "/dev/tty"}, {5, "/dev/console"}, {5, "/dev/ptmx"}, {10, "misc"}, {136, "pts"}, {hw.Majors.DRM, "drm"}}
	if !st.DriverGone {
		lines = append(lines,
			line{hw.Majors.NVIDIA, "nvidia"}, line{hw.Majors.NVIDIA, "nvidia-modeset"}, line{hw.Majors.NVIDIA, "nvidiactl"},
			line{hw.Majors.UVM, "nvidia-uvm"}, line{hw.Majors.Caps, "nvidia-caps"})
	}
	for _, extra := range hw.extras(st) {
		lines = append(lines, line{extra.major, extra.driver})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.major) - int(b.major) })
	var text strings.Builder
	text.WriteString("Character devices:\n")
	for _, l := range lines {
		fmt.Fprintf(&text, "%3d %s\n", l.major, l.name)
	}
	text.WriteString("\nBlock devices:\n  7 loop\n259 blkext\n")
	return text.String()
}
