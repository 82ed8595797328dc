package topview

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// Beside a history, holders get fewer columns.
	leastHealth   = 18
	leastHolders  = 30
	fewestHolders = 16
	leastName     = 12
)

// View says how samples are drawn.
type View struct {
	// SortBy is one of the Keys, or empty for the order of nodes and indices.
	SortBy string
	// Several is set for a row for each node even where one is left of them.
	Several bool
	// None is printed where there are no rows; empty is "no GPUs".
	None string
	// RowsOnly leaves out the headings and what was not read.
	RowsOnly bool
	// Processes adds a row for each pod of a device.
	Processes bool
	// History, if there is one, is drawn beside the utilization.
	History *History
	// Wide adds what the tables of one node leave out: the use of memory, of the compute engine and of the tensor cores, the clock, and the
	// UUID.
	Wide bool
}

// Write writes a row for each device of one node, or a row for each of several nodes, and then which sources were not read.
func (v *View) Write(w io.Writer, nodes []*v1alpha1.GPUSamples, out term.Output) error {
	layout := v.layout(nodes)
	layout.NoHead = v.RowsOnly
	if len(layout.Rows) == 0 && !v.RowsOnly {
		_, err := fmt.Fprintln(w, cmp.Or(v.None, "no GPUs"))
		return err
	}
	if err := layout.Write(w, out); err != nil {
		return err
	}
	if v.ofNodes(nodes) || v.RowsOnly {
		return nil
	}
	for i := range nodes[0].Items {
		s := &nodes[0].Items[i]
		for _, trouble := range s.Troubles {
			line := fmt.Sprintf("GPU %s: %s was not read: %s", index(s), trouble.Source, trouble.Message)
			if _, err := fmt.Fprintln(w, out.Line(line, term.Warn)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *View) layout(nodes []*v1alpha1.GPUSamples) *term.Layout {
	if v.ofNodes(nodes) {
		return v.nodes(nodes)
	}
	return v.devices(nodes[0])
}

// ofNodes reports whether there is a row for each node, not for each device of one.
func (v *View) ofNodes(nodes []*v1alpha1.GPUSamples) bool { return v.Several || len(nodes) != 1 }

// columns completes the columns that devices and nodes have in common. Memory is left out in the given order.
func (v *View) columns(dropMemory int, first ...term.Column) []term.Column {
	holders := term.Column{Head: "HELD BY", Least: leastHolders}
	if v.History != nil {
		holders.Least = fewestHolders
	}
	columns := append(first, term.Column{Head: "HEALTH", Least: leastHealth}, holders)
	if v.Processes {
		columns = append(columns, term.Column{Head: "PROCS", Right: true})
	}
	columns = append(columns, term.Column{Head: "UTIL", Right: true})
	if v.History != nil {
		columns = append(columns, term.Column{Head: "HISTORY", Drop: 2})
	}
	return append(columns, term.Column{Head: "MEMORY", Right: true, Drop: dropMemory}, term.Column{Head: "TEMP", Right: true, Drop: 4}, term.Column{Head: "POWER", Right: true, Drop: 5},
		term.Column{Head: "MODEL", Least: leastName, Drop: 6})
}

// wideColumns are those that Wide adds for a node.
func wideColumns() []term.Column {
	return []term.Column{
		{Head: "MEM UTIL", Right: true, Drop: 7}, {Head: "ACTIVE", Right: true, Drop: 8}, {Head: "TENSOR", Right: true, Drop: 9}, {Head: "CLOCK", Right: true, Drop: 10},
		{Head: "UUID", Drop: 11},
	}
}

// facts are the cells that devices, nodes and pods have in common.
type facts struct {
	health    string
	holders   string
	processes string
	key       string // of the history
	busy      *float64
	held      bool
	memory    string
	temp      string
	power     string
	product   string
	wide      []string
}

func (v *View) row(f *facts, first ...string) []term.Cell {
	cells := append(term.Cells(first...), healthCell(f.health), term.Cell{Text: f.holders})
	if v.Processes {
		cells = append(cells, term.Cell{Text: f.processes})
	}
	cells = append(cells, busyCell(f.busy, f.held))
	if v.History != nil {
		cells = append(cells, term.Cell{Text: v.History.line(f.key)})
	}
	cells = append(cells, term.Cells(f.memory, f.temp, f.power, f.product)...)
	return append(cells, term.Cells(f.wide...)...)
}

// healthCell returns the health in its colour; the text begins with the state.
func healthCell(text string) term.Cell {
	switch state := stateOf(text); {
	case state.Worse(gpu.Degraded):
		return term.Cell{Text: text, Colour: term.Bad}
	case state.Worse(gpu.Healthy):
		return term.Cell{Text: text, Colour: term.Warn}
	}
	return term.Cell{Text: text}
}

func stateOf(text string) gpu.State {
	state, _, _ := strings.Cut(text, " ")
	return gpu.State(state)
}

// busyCell returns the utilization; that of a device that is held and not used is marked.
func busyCell(busy *float64, held bool) term.Cell {
	cell := term.Cell{Text: percent(busy)}
	if held && busy != nil && *busy < gpu.IdleBelow {
		cell.Colour = term.Warn
	}
	return cell
}

// devices returns a row for each GPU and each MIG device of a node.
func (v *View) devices(node *v1alpha1.GPUSamples) *term.Layout {
	layout := &term.Layout{Columns: v.columns(1, term.Column{Head: "INDEX"})}
	if v.Wide {
		layout.Columns = append(layout.Columns, wideColumns()...)
	}
	for _, s := range v.sortedGPUs(node) {
		parts := s.Partitioned && len(s.Devices) > 0
		f := &facts{
			health: s.Health, holders: podUse(s.Pods, parts), key: s.UUID, busy: busyShare(s), held: holds(s.Pods),
			memory: memoryUse(s.GPUSampleUse), temp: number(s.TemperatureCelsius, "C"), power: power(s), product: s.Product,
			wide: v.wide(percent(s.MemoryUtilization), percent(s.Active), percent(s.Tensor), clock(s.SMClockHertz), s.UUID),
		}
		v.add(layout, f, s.Pods, index(s))
		for i := range s.Devices {
			m := &s.Devices[i]
			part := &facts{
				health: m.Health, holders: podUse(m.Pods, false), key: m.UUID, busy: m.Active, held: holds(m.Pods),
				memory: memoryUse(m.GPUSampleUse), product: "MIG " + m.Profile,
				wide: v.wide("", percent(m.Active), percent(m.Tensor), "", m.UUID),
			}
			v.add(layout, part, m.Pods, fmt.Sprintf("%s:%d", index(s), m.Index))
		}
	}
	return layout
}

// add adds the row of a device, and those of its pods if they are wanted.
func (v *View) add(layout *term.Layout, f *facts, pods []v1alpha1.PodSample, name string) {
	if !v.Processes || len(pods) == 0 {
		layout.Rows = append(layout.Rows, v.row(f, name))
		return
	}
	f.holders = ""
	layout.Rows = append(layout.Rows, v.row(f, name))
	for i := range pods {
		p := &pods[i]
		text := "  " + podName(p)
		if p.Container != "" {
			text += " (" + p.Container + ")"
		}
		if !p.Held {
			text += notGiven
		}
		count := "-"
		if p.Processes != nil {
			count = fmt.Sprint(*p.Processes)
		}
		one := &facts{holders: text, processes: count, busy: p.SMUtilization, memory: memoryUse(v1alpha1.GPUSampleUse{MemoryUsedBytes: p.MemoryUsedBytes}),
			wide: v.wide("", "", "", "", "")}
		layout.Rows = append(layout.Rows, v.row(one, ""))
	}
}

// wide returns the cells of wideColumns, if they are wanted.
func (v *View) wide(cells ...string) []string {
	if !v.Wide {
		return nil
	}
	return cells
}

// index returns the index of a GPU, with the vendor on a node with GPUs of several.
func index(s *v1alpha1.GPUSample) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d", s.Vendor, s.Index))
}

// busyShare returns the utilization of a GPU, or its activity where that is not reported.
func busyShare(s *v1alpha1.GPUSample) *float64 {
	if s.Utilization == nil {
		return s.Active
	}
	return s.Utilization
}
