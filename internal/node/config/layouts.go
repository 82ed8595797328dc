package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// layoutFile is a file of NVIDIA's mig-parted.
type layoutFile struct {
	Version string                               `json:"version"`
	Layouts map[string][]v1alpha1.MIGLayoutEntry `json:"mig-configs"`
}

// ParseMIGLayouts reads the layouts of a mig-parted file (version v1, mig-configs) named file.
// The error is an *Error with line, field and fix.
func ParseMIGLayouts(file string, data []byte) (map[string][]v1alpha1.MIGLayoutEntry, error) {
	d := newDecoder(file)
	var read layoutFile
	d.decode(d.parse(data), &read, map[string]string{
		"hooks": "hooks are not run: Berth does not stop or start programs of the node for a MIG change",
	})
	if err := d.err(); err != nil {
		return nil, err
	}
	d.checkVersion(read.Version)
	switch {
	case read.Layouts == nil:
		d.reject("mig-configs", "is missing", "write the layouts under mig-configs, each a list of entries under its name")
	case len(read.Layouts) == 0:
		d.reject("mig-configs", "there is no layout", "write at least one, such as all-disabled: [{devices: all, mig-enabled: false}]")
	}
	d.checkLayouts("mig-configs", read.Layouts)
	if err := d.err(); err != nil {
		return nil, err
	}
	return read.Layouts, nil
}

func (d *decoder) checkVersion(version string) {
	switch version {
	case "v1":
	case "":
		d.reject("version", "is missing", "write version: v1")
	default:
		d.reject("version", strconv.Quote(version)+" is unknown", "write version: v1")
	}
}

func (d *decoder) checkLayouts(at string, layouts map[string][]v1alpha1.MIGLayoutEntry) {
	for _, name := range slices.Sorted(maps.Keys(layouts)) {
		field := at + "[" + name + "]"
		if len(layouts[name]) == 0 {
			d.reject(field, "this layout has no entries", "write at least one, such as {devices: all, mig-enabled: false}")
		}
		for i := range layouts[name] {
			d.checkLayoutEntry(fmt.Sprintf("%s[%d]", field, i), &layouts[name][i])
		}
	}
}

func (d *decoder) checkLayoutEntry(at string, e *v1alpha1.MIGLayoutEntry) {
	for i, id := range e.DeviceFilter {
		if !deviceID.MatchString(id) {
			d.reject(fmt.Sprintf("%s.device-filter[%d]", at, i), strconv.Quote(id)+" is not the PCI ID of a model",
				"write device and vendor as 0xDDDDVVVV, such as \"0x233010DE\", or with the subsystem as 0xDDDDVVVV:0xSSSSVVVV")
		}
	}
	if !e.Devices.All && e.Devices.Indices == nil {
		d.reject(at+".devices", "is missing", "write all, or a list of indices such as [0, 1]")
	}
	d.checkIndices(at+".devices", e.Devices.Indices)
	switch {
	case !d.given(at + ".mig-enabled"):
		d.reject(at+".mig-enabled", "is missing", "write true or false")
	case e.MIGEnabled && e.MIGDevices == nil:
		d.reject(at+".mig-devices", "is missing", "write the number of devices by profile, such as {\"1g.10gb\": 7}, or {} for none")
	case !e.MIGEnabled && len(e.MIGDevices) > 0:
		d.reject(at+".mig-devices", "mig-enabled is false, so there can be no MIG devices", "set mig-enabled: true, or remove mig-devices")
	}
	d.checkProfiles(at+".mig-devices", e.MIGDevices)
}

// Layouts returns the layouts that follow from the hardware, overridden by those of each list in turn.
func Layouts(gpus []mig.GPU, lists ...map[string][]v1alpha1.MIGLayoutEntry) map[string]mig.Layout {
	all := mig.HardwareLayouts(gpus)
	for _, list := range lists {
		for name, entries := range list {
			all[name] = Layout(entries)
		}
	}
	return all
}

// Layout converts a checked layout to the planner's type.
func Layout(entries []v1alpha1.MIGLayoutEntry) mig.Layout {
	var layout mig.Layout
	for _, from := range entries {
		entry := mig.Entry{All: from.Devices.All, Indices: from.Devices.Indices, Enabled: from.MIGEnabled, Devices: from.MIGDevices}
		for _, filter := range from.DeviceFilter {
			device, board, onBoard := strings.Cut(filter, ":")
			id, err1 := strconv.ParseUint(device, 0, 32)
			subsystem, err2 := strconv.ParseUint(board, 0, 32)
			switch {
			case err1 == nil && !onBoard:
				entry.DeviceIDs = append(entry.DeviceIDs, uint32(id))
			case err1 == nil && err2 == nil:
				entry.Boards = append(entry.Boards, mig.Board{DeviceID: uint32(id), SubsystemID: uint32(subsystem)})
			}
		}
		layout = append(layout, entry)
	}
	return layout
}
