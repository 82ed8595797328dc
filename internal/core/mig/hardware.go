package mig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// HardwareLayouts returns the layouts that follow from a node's GPUs, by the names that mig-parted uses:
//
//	all-disabled   MIG off; on every node
//	all-enabled    MIG on, and no devices
//	all-PROFILE    as many devices of the profile as a GPU can have, + written as .
//	all-balanced   on GPUs of 7 compute slices two 1g, a 2g and a 3g; on those of 4 two 1g and a 2g
//
// The last two apply only to the GPUs that have the profiles. If not all GPUs with MIG have the same devices, the
// entries are limited to the models concerned.
func HardwareLayouts(gpus []GPU) map[string]Layout {
	layouts := map[string]Layout{"all-disabled": {{All: true}}}
	models := modelsOf(gpus)
	if len(models) == 0 {
		return layouts
	}
	layouts["all-enabled"] = Layout{{All: true, Enabled: true, Devices: map[string]int{}}}
	// devices are what each model gets, by the layout's name.
	devices := map[string][]map[string]int{}
	set := func(name string, model int, wanted map[string]int) {
		if devices[name] == nil {
			devices[name] = make([]map[string]int, len(models))
		}
		devices[name][model] = wanted
	}
	for m := range models {
		t := models[m].table
		for i := range t.shapes {
			counts := make([]int, len(t.shapes))
			counts[i] = t.shapes[i].Max
			if n := t.most(counts)[i]; n > 0 {
				name := t.shapes[i].Name
				set("all-"+strings.ReplaceAll(name, "+", "."), m, map[string]int{name: n})
			}
		}
		if balanced := t.balanced(); balanced != nil {
			set("all-balanced", m, balanced)
		}
	}
	for name, wanted := range devices {
		layouts[name] = layoutOf(models, wanted)
	}
	return layouts
}

// model is a kind of GPU that supports MIG.
type model struct {
	deviceID uint32
	table    *table
}

// modelsOf returns the kinds among the GPUs, ordered by device ID.
func modelsOf(gpus []GPU) []model {
	var models []model
	for i := range gpus {
		c := &gpus[i]
		if c.Capable && !slices.ContainsFunc(models, func(m model) bool { return m.deviceID == c.DeviceID }) {
			models = append(models, model{c.DeviceID, newTable(&c.Geometry)})
		}
	}
	slices.SortFunc(models, func(a, b model) int { return cmp.Compare(a.deviceID, b.deviceID) })
	return models
}

// layoutOf returns a layout with an entry for each set of wanted devices; it leaves out models for which that is nil.
func layoutOf(models []model, wanted []map[string]int) Layout {
	var layout Layout
	for m, devices := range wanted {
		if devices == nil {
			continue
		}
		at := slices.IndexFunc(layout, func(e Entry) bool { return maps.Equal(e.Devices, devices) })
		if at < 0 {
			at = len(layout)
			layout = append(layout, Entry{All: true, Enabled: true, Devices: devices})
		}
		layout[at].DeviceIDs = append(layout[at].DeviceIDs, models[m].deviceID)
	}
	if len(layout) == 1 && len(layout[0].DeviceIDs) == len(models) {
		layout[0].DeviceIDs = nil
	}
	return layout
}

// balanced returns the mixed layout of a GPU, or nil for a GPU for which mig-parted defines none.
func (t *table) balanced() map[string]int {
	var sizes []int
	switch t.geometry.ComputeSlices {
	case 7:
		sizes = []int{1, 1, 2, 3}
	case 4:
		sizes = []int{1, 1, 2}
	default:
		return nil
	}
	devices := map[string]int{}
	for _, size := range sizes {
		name := t.plain(size)
		if name == "" {
			return nil
		}
		devices[name]++
	}
	if !t.fits(t.counts(devices)) {
		return nil
	}
	return devices
}

// plain returns the profile without attributes that has that many compute slices; of several, the one of which a GPU
// can have the most.
func (t *table) plain(computeSlices int) string {
	name, most := "", 0
	for i := range t.shapes {
		s := &t.shapes[i]
		if s.ComputeSlices == computeSlices && s.Max > most && !strings.ContainsAny(s.Name, "+-") {
			name, most = s.Name, s.Max
		}
	}
	return name
}

// LayoutNames returns the names of layouts, sorted.
func LayoutNames(layouts map[string]Layout) []string { return slices.Sorted(maps.Keys(layouts)) }

// FindLayout returns a layout by name; its error lists the existing names.
func FindLayout(layouts map[string]Layout, name string) (Layout, error) {
	if layout, ok := layouts[name]; ok {
		return layout, nil
	}
	known := LayoutNames(layouts)
	hint := ""
	if nearest := spelling.Nearest(name, known); nearest != "" {
		hint = fmt.Sprintf("did you mean %s? ", nearest)
	}
	return nil, fmt.Errorf("no MIG layout %q: %sthere are %s", name, hint, strings.Join(known, ", "))
}
