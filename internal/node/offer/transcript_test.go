package offer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// TestTranscripts runs the transcripts in testdata. Commands:
//
//	node                      set the node from the lines below, each
//	                          "gpu INDEX UUID [mig] [cc=M.N] [mib=N] [sick] [PRODUCT]", or
//	                          "part N:M UUID PROFILE" of the preceding GPU; - is empty
//	settings                  set the settings from the JSON below
//	resolve                   print the wanted units and the problems
//	rules                     print the deciding rule of each GPU
//	settle [pending=(GPU,…)]  print the units in force; below are the holders: "KEY HOLDER …"
//	offers                    print the kubelet's lists of the units in force
//	forget                    clear the units in force
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := &script{snapshot: &gpu.Snapshot{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "node":
				s.snapshot = parseNode(t, d)
				return ""
			case "settings":
				s.settings = Settings{}
				decoder := json.NewDecoder(strings.NewReader(d.Input))
				decoder.DisallowUnknownFields()
				if err := decoder.Decode(&s.settings); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return ""
			case "resolve":
				units, problems := Resolve(s.snapshot, s.settings)
				text := describeUnits(units)
				for _, problem := range problems {
					text += problem.Code + " " + problem.Message + "\n"
				}
				return text
			case "rules":
				var text strings.Builder
				decided := DecidingRules(s.snapshot, s.settings.GPUs)
				for i := range s.snapshot.GPUs {
					if rule, ok := decided[s.snapshot.GPUs[i].UUID]; ok {
						fmt.Fprintf(&text, "%s gpus[%d]\n", s.snapshot.GPUs[i].UUID, rule)
					}
				}
				return text.String()
			case "settle":
				return s.settle(t, d)
			case "offers":
				return picture(Build(s.snapshot, s.applied))
			case "forget":
				s.applied = nil
				return ""
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

type script struct {
	snapshot *gpu.Snapshot
	settings Settings
	applied  []Unit
}

func (s *script) settle(t *testing.T, d *datadriven.TestData) string {
	held := map[gpu.DeviceKey][]string{}
	for line := range strings.Lines(d.Input) {
		fields := strings.Fields(line)
		id, share, err := ParseDeviceID(fields[0])
		c, part := s.snapshot.Device(id)
		if err != nil || c == nil {
			d.Fatalf(t, "no device %s", fields[0])
		}
		key := gpu.DeviceKey{GPU: c.UUID, Share: share}
		if part != nil {
			key.MIG = part.UUID
		}
		held[key] = fields[1:]
	}
	pending := map[gpu.UUID]string{}
	for _, arg := range d.CmdArgs {
		for _, id := range arg.Vals {
			pending[gpu.UUID(id)] = "is being partitioned"
		}
	}
	wanted, _ := Resolve(s.snapshot, s.settings)
	s.applied = Settle(s.snapshot, wanted, s.applied, holdersIn(held), pending)
	return describeUnits(s.applied)
}

// holdersIn returns the holders as the ledger would.
func holdersIn(held map[gpu.DeviceKey][]string) func(gpu.DeviceKey) []string {
	return func(key gpu.DeviceKey) []string {
		var names []string
		for at, holders := range held {
			if at.GPU == key.GPU && (key.MIG == "" || at.MIG == key.MIG) {
				names = append(names, holders...)
			}
		}
		return names
	}
}

func parseNode(t *testing.T, d *datadriven.TestData) *gpu.Snapshot {
	snapshot := &gpu.Snapshot{}
	for line := range strings.Lines(d.Input) {
		fields := strings.Fields(line)
		if fields[2] == "-" {
			fields[2] = ""
		}
		switch fields[0] {
		case "gpu":
			snapshot.GPUs = append(snapshot.GPUs, parseGPU(t, d, fields))
		case "part":
			mig := &snapshot.GPUs[len(snapshot.GPUs)-1].MIG
			_, index, _ := strings.Cut(fields[1], ":")
			m, err := strconv.Atoi(index)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			part := gpu.MIGDevice{Partition: gpu.Partition{UUID: gpu.UUID(fields[2]), Index: m}, GI: 7 + m}
			if len(fields) > 3 {
				part.Profile = fields[3]
			}
			mig.Devices = append(mig.Devices, part)
		default:
			d.Fatalf(t, "unknown line %q", line)
		}
	}
	return snapshot
}

func parseGPU(t *testing.T, d *datadriven.TestData, fields []string) gpu.GPU {
	index, err := strconv.Atoi(fields[1])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	made := gpu.GPU{
		Index: index, UUID: gpu.UUID(fields[2]), Product: "A100", NUMANode: gpu.NoNUMANode,
		ComputeCapability: gpu.Version{Major: 8}, MemoryBytes: 40960 << 20,
	}
	for _, field := range fields[3:] {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "mig":
			made.MIG.Enabled = true
		case "sick":
			made.Health = gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{{Code: "GPU_LOST"}}}
		case "cc":
			_, err = fmt.Sscanf(value, "%d.%d", &made.ComputeCapability.Major, &made.ComputeCapability.Minor)
		case "mib":
			_, err = fmt.Sscan(value, &made.MemoryBytes)
			made.MemoryBytes <<= 20
		default:
			made.Product = field
		}
		if err != nil {
			d.Fatalf(t, "%s: %v", field, err)
		}
	}
	return made
}

func describeUnits(units []Unit) string {
	var text strings.Builder
	for _, unit := range units {
		fmt.Fprintf(&text, "%v  %v", unit.Key, unit.Use)
		if unit.Use.Mode == MPS {
			fmt.Fprintf(&text, " %d MiB %d%%", unit.Use.PinnedMemoryMiB, unit.Use.ActiveThreadPercentage)
		}
		if unit.Use.TimeSlice != "" {
			text.WriteString(" " + unit.Use.TimeSlice)
		}
		if unit.Use.RefuseMany {
			text.WriteString(" one each")
		}
		if unit.Draining != "" {
			text.WriteString("\n    draining: " + unit.Draining)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// picture prints offers, the replicas of a device on one line.
func picture(offers []Offer) string {
	var text strings.Builder
	for _, o := range offers {
		healthy := 0
		for _, device := range o.Devices {
			if device.Health.Allocatable() {
				healthy++
			}
		}
		fmt.Fprintf(&text, "%s: %d of %d", o.Resource, healthy, len(o.Devices))
		if o.RefuseMany {
			text.WriteString(", one per container")
		}
		text.WriteByte('\n')
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		for i := 0; i < len(o.Devices); {
			first, n := o.Devices[i], 1
			for i+n < len(o.Devices) && o.Devices[i+n].Key.Device() == first.Key.Device() {
				n++
			}
			ids := first.ID
			if n > 1 {
				ids += " to " + o.Devices[i+n-1].ID
			}
			health := "healthy"
			if !first.Health.Allocatable() {
				health = first.Reason
			}
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", first.Index, strings.Repeat("#", n), ids, health)
			i += n
		}
		table.Flush()
	}
	return text.String()
}
