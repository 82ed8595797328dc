package mig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestTranscripts runs the transcripts in testdata. Commands:
//
//	GPU KIND [index=N] [off] [incapable] [silent] [holders=(…)]
//	                      add a GPU of the kind, silent when the driver does not report its
//	                      geometry; each line below is an instance: PROFILE@START
//	                      [incomplete] [sibling] [HOLDER…]
//	plan [off] [indices=(…)]
//	                      print Describe of the plan for all GPUs, or those; the devices are
//	                      below, a line each: PROFILE COUNT
//	do                    execute the last plan, as far as a driver permits it
//	end HOLDER…           release what those holders hold
//	layouts               print the layouts that follow from the hardware
//	apply NAME            plan one of those
//	reset                 remove all GPUs
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		n := &node{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "gpu":
				n.gpus = append(n.gpus, readGPU(t, d, len(n.gpus)))
				return ""
			case "plan":
				return n.plan(readLayout(t, d))
			case "do":
				return n.carryOut()
			case "end":
				n.end(d.CmdArgs)
				return ""
			case "layouts":
				return n.layouts()
			case "apply":
				layout, err := FindLayout(HardwareLayouts(n.gpus), d.CmdArgs[0].Key)
				if err != nil {
					return err.Error() + "\n"
				}
				return n.plan(layout)
			case "reset":
				n.gpus, n.plans = nil, nil
				return ""
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// node is the state of a transcript.
type node struct {
	gpus  []GPU
	plans []GPUPlan
}

func (n *node) plan(layout Layout) string {
	n.plans = PlanNode(n.gpus, layout)
	return Describe(n.plans, n.gpus)
}

func (n *node) carryOut() string {
	for _, plan := range n.plans {
		i := slices.IndexFunc(n.gpus, func(c GPU) bool { return c.UUID == plan.UUID })
		if i < 0 || plan.Refused != "" || len(plan.Blockers) > 0 {
			continue
		}
		c := checkerOf(n.gpus[i])
		if err := c.carryOut(plan); err != nil {
			return err.Error() + "\n"
		}
		n.gpus[i].Enabled, n.gpus[i].Instances = c.enabled, c.instances
	}
	return ""
}

func (n *node) end(args []datadriven.CmdArg) {
	for i := range n.gpus {
		endHolders(&n.gpus[i], func(name string) bool {
			return slices.ContainsFunc(args, func(a datadriven.CmdArg) bool { return a.Key == name })
		})
	}
}

// endHolders removes the ended holders from a copy of a GPU that shares no memory with the original.
func endHolders(g *GPU, ended func(name string) bool) {
	g.Holders = slices.DeleteFunc(slices.Clone(g.Holders), ended)
	g.Instances = slices.Clone(g.Instances)
	for j := range g.Instances {
		one := &g.Instances[j]
		one.Holders = slices.DeleteFunc(slices.Clone(one.Holders), ended)
	}
}

func (n *node) layouts() string {
	var text strings.Builder
	layouts := HardwareLayouts(n.gpus)
	for _, name := range LayoutNames(layouts) {
		fmt.Fprintf(&text, "%s\n", name)
		for _, e := range layouts[name] {
			fmt.Fprintf(&text, "  %s\n", entryText(e))
		}
	}
	return text.String()
}

func entryText(e Entry) string {
	var parts []string
	for _, id := range e.DeviceIDs {
		parts = append(parts, fmt.Sprintf("0x%08X", id))
	}
	if e.All {
		parts = append(parts, "all")
	}
	if !e.Enabled {
		return strings.Join(append(parts, "off"), " ")
	}
	parts = append(parts, "on")
	for _, name := range slices.Sorted(maps.Keys(e.Devices)) {
		parts = append(parts, fmt.Sprintf("%s:%d", name, e.Devices[name]))
	}
	return strings.Join(parts, " ")
}

func readGPU(t *testing.T, d *datadriven.TestData, index int) GPU {
	t.Helper()
	kind := kindOf(t, d.CmdArgs[0].Key)
	d.MaybeScanArgs(t, "index", &index)
	g := kind.gpu(index)
	if d.HasArg("off") {
		g.Enabled = false
	}
	if d.HasArg("incapable") {
		g.Capable, g.Enabled, g.Geometry = false, false, gpu.MIGGeometry{}
	}
	if d.HasArg("silent") {
		g.Geometry = gpu.MIGGeometry{}
	}
	for _, arg := range d.CmdArgs {
		if arg.Key == "holders" {
			g.Holders = arg.Vals
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		profile, place, ok := strings.Cut(fields[0], "@")
		start, err := strconv.Atoi(place)
		if !ok || err != nil {
			d.Fatalf(t, "%q: want PROFILE@START", line)
		}
		one := Instance{UUID: gpu.UUID(fmt.Sprintf("MIG-%d-%d", index, i)), GI: i + 1, Profile: profile, Start: start, Size: 1}
		_, whole, smaller := strings.Cut(profile, "c.")
		if !smaller {
			whole = profile
		}
		if p := g.Geometry.Profile(whole); p != nil {
			one.Size = p.Size
		}
		for _, word := range fields[1:] {
			switch word {
			case "incomplete":
				one.UUID = ""
			case "sibling":
				one.Siblings = append(one.Siblings, gpu.UUID(fmt.Sprintf("MIG-%d-%d.1", index, i)))
			default:
				one.Holders = append(one.Holders, word)
			}
		}
		g.Instances = append(g.Instances, one)
	}
	return g
}

func readLayout(t *testing.T, d *datadriven.TestData) Layout {
	t.Helper()
	first := Entry{Enabled: !d.HasArg("off"), All: true, Devices: map[string]int{}}
	for _, arg := range d.CmdArgs {
		if arg.Key != "indices" {
			continue
		}
		first.All = false
		for i := range arg.Vals {
			var index int
			arg.Scan(t, i, &index)
			first.Indices = append(first.Indices, index)
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		count, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil {
			d.Fatalf(t, "%q: want PROFILE COUNT", line)
		}
		first.Devices[fields[0]] = count
	}
	return Layout{first}
}
