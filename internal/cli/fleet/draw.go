package fleet

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

const (
	// screenRows and screenColumns are the size of the screen where the output has none. One line of it is for the prompt.
	screenRows    = 24
	screenColumns = 80
	// barColumns is the width of a bar in a table, mostColumns the greatest one of the bar of all GPUs, leastName the least one of a name.
	barColumns  = 12
	mostColumns = 40
	leastName   = 24
)

// bar draws what is held, what is neither held nor free, and what is free; it is empty where there is nothing.
func bar(columns, total, held, free int) string {
	if total == 0 {
		return ""
	}
	return term.Bar(columns, total, '░', term.Part{Count: held, Rune: '█'}, term.Part{Count: total - held - free, Rune: '╳'})
}

// section is a table of a summary.
type section struct {
	columns []term.Column
	rows    [][]term.Cell
	// left describes the rows from the given one on, which are not shown.
	left func(from int) string
	// show is how many rows are shown.
	show int
}

// lines returns how many lines a section takes.
func (s *section) lines() int {
	n := s.show
	if n > 0 {
		n++
	}
	if s.show < len(s.rows) {
		n++
	}
	return n
}

// WriteSummary writes a summary that fits on one screen.
func WriteSummary(w io.Writer, fleet *v1alpha1.GPUFleet, out term.Output) error {
	rows := out.Rows
	if rows <= 0 {
		rows = screenRows
	}
	if out.Columns <= 0 {
		out.Columns = screenColumns
	}
	title := fmt.Sprintf("%s, %s: %d held, %d free, %d unhealthy", phrase.Count(fleet.Nodes, "node"), phrase.Count(fleet.GPUs, "GPU"), fleet.Held, fleet.Free, fleet.Unhealthy)
	if space := out.Columns - utf8.RuneCountInString(title) - len("    100% held"); fleet.GPUs > 0 && space > 0 {
		title += fmt.Sprintf("   %s %d%% held", bar(min(space, mostColumns), fleet.GPUs, fleet.Held, fleet.Free), 100*fleet.Held/fleet.GPUs)
	}
	sections := []*section{modelSection(fleet), resourceSection(fleet), namespaceSection(fleet), problemSection(fleet)}
	share(sections, rows-2-len(fleet.NotRead))
	text := &strings.Builder{}
	fmt.Fprintln(text, out.Line(title, term.Heading))
	for _, s := range sections {
		if len(s.rows) == 0 {
			continue
		}
		fmt.Fprintln(text)
		if s.show > 0 {
			layout := term.Layout{Columns: s.columns, Rows: s.rows[:s.show]}
			if err := layout.Write(text, out); err != nil {
				return err
			}
		}
		if s.show < len(s.rows) {
			fmt.Fprintln(text, out.Line(s.left(s.show), term.Plain))
		}
	}
	for _, one := range fleet.NotRead {
		fmt.Fprintln(text, out.Line("not read: "+one.Path+": "+one.Why, term.Warn))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// share says how many rows each section shows: all, or one row of each in turn until the lines are used up.
func share(sections []*section, lines int) {
	used := func() int {
		n := 0
		for _, s := range sections {
			if len(s.rows) > 0 {
				n += 1 + s.lines()
			}
		}
		return n
	}
	for grown := true; grown; {
		grown = false
		for _, s := range sections {
			if s.show == len(s.rows) {
				continue
			}
			s.show++
			if used() > lines {
				s.show--
				continue
			}
			grown = true
		}
	}
}

func modelSection(fleet *v1alpha1.GPUFleet) *section {
	s := &section{columns: []term.Column{{Head: "MODEL", Least: leastName}, number("NODES", 3), number("GPUS", 0), number("HELD", 0), number("FREE", 0),
		number("UNHEALTHY", 0), {Drop: 1}}}
	for i := range fleet.Models {
		g := &fleet.Models[i]
		s.rows = append(s.rows, append(gpuCells(orNone(g.Name), g), term.Cell{Text: bar(barColumns, g.GPUs, g.Held, g.Free)}))
	}
	s.left = func(from int) string {
		gpus, held := 0, 0
		for _, g := range fleet.Models[from:] {
			gpus, held = gpus+g.GPUs, held+g.Held
		}
		return fmt.Sprintf("and %d more with %s, %d held", len(fleet.Models)-from, phrase.Count(gpus, "GPU"), held)
	}
	return s
}

// gpuCells are a name and the numbers of GPUs.
func gpuCells(name string, g *v1alpha1.GPUGroup) []term.Cell {
	return append(term.Cells(name, fmt.Sprint(g.Nodes), fmt.Sprint(g.GPUs), fmt.Sprint(g.Held), fmt.Sprint(g.Free)), unhealthy(g.Unhealthy))
}

func unhealthy(count int) term.Cell {
	cell := term.Cell{Text: fmt.Sprint(count)}
	if count > 0 {
		cell.Colour = term.Bad
	}
	return cell
}

func resourceSection(fleet *v1alpha1.GPUFleet) *section {
	s := &section{columns: []term.Column{{Head: "RESOURCE", Least: leastName}, number("DEVICES", 2), number("REQUESTED", 0), number("HELD", 0),
		number("FREE", 0), {Drop: 1}}}
	for i := range fleet.Resources {
		g := &fleet.Resources[i]
		s.rows = append(s.rows, append(resourceCells(g), term.Cell{Text: bar(barColumns, g.Devices.Total, g.Devices.Held, g.Devices.Free)}))
	}
	s.left = func(from int) string {
		total, held := 0, 0
		for _, g := range fleet.Resources[from:] {
			total, held = total+g.Devices.Total, held+g.Devices.Held
		}
		return fmt.Sprintf("and %d more with %s, %d held", len(fleet.Resources)-from, phrase.Count(total, "device"), held)
	}
	return s
}

// resourceCells are a resource and the numbers of its devices.
func resourceCells(g *v1alpha1.GPUGroup) []term.Cell {
	d := &g.Devices
	return []term.Cell{{Text: cmp.Or(g.Name, "not advertised")}, {Text: fmt.Sprint(d.Total)}, requested(d), {Text: fmt.Sprint(d.Held)}, {Text: fmt.Sprint(d.Free)}}
}

// requested returns what pods request; more than can be given is marked.
func requested(d *v1alpha1.GPUDeviceCounts) term.Cell {
	if d.Requested == nil {
		return term.Cell{Text: "-"}
	}
	cell := term.Cell{Text: fmt.Sprint(*d.Requested)}
	if *d.Requested > int64(d.Held+d.Free) {
		cell.Colour = term.Warn
	}
	return cell
}

func namespaceSection(fleet *v1alpha1.GPUFleet) *section {
	s := &section{columns: []term.Column{{Head: "NAMESPACE", Least: leastName}, number("GPUS HELD", 0), number("DEVICES HELD", 0), number("REQUESTED", 0),
		number("NODES", 2), {Drop: 1}}}
	for i := range fleet.Namespaces {
		g := &fleet.Namespaces[i]
		s.rows = append(s.rows, append(namespaceCells(g), term.Cell{Text: bar(barColumns, fleet.GPUs, g.Held, fleet.GPUs-g.Held)}))
	}
	s.left = func(from int) string {
		held := 0
		for _, g := range fleet.Namespaces[from:] {
			held += g.Held
		}
		return fmt.Sprintf("and %d more with %s held", len(fleet.Namespaces)-from, phrase.Count(held, "GPU"))
	}
	return s
}

// namespaceCells are a namespace and the numbers of what it holds.
func namespaceCells(g *v1alpha1.GPUGroup) []term.Cell {
	asked := "-"
	if g.Devices.Requested != nil {
		asked = fmt.Sprint(*g.Devices.Requested)
	}
	return term.Cells(orNone(g.Name), fmt.Sprint(g.Held), fmt.Sprint(g.Devices.Held), asked, fmt.Sprint(g.Nodes))
}

func problemSection(fleet *v1alpha1.GPUFleet) *section {
	s := &section{columns: []term.Column{{Head: "PROBLEM", Least: leastName}, number("GPUS", 0), number("NODES", 0), {Head: "FOR EXAMPLE", Least: leastName}}}
	for i := range fleet.Problems {
		p := &fleet.Problems[i]
		text := cmp.Or(p.Node, "this machine")
		if p.Message != "" {
			text += ": " + p.Message
		}
		s.rows = append(s.rows, []term.Cell{{Text: p.Code, Colour: term.Bad}, {Text: fmt.Sprint(p.GPUs)}, {Text: fmt.Sprint(p.Nodes)}, {Text: text}})
	}
	s.left = func(from int) string {
		return fmt.Sprintf("and %s", phrase.Count(len(fleet.Problems)-from, "more problem"))
	}
	return s
}

// WriteGroups writes a row for each group of the GPUs, of which there are total. rowsOnly leaves out the headings.
func WriteGroups(w io.Writer, list *v1alpha1.GPUGroupList, total int, rowsOnly bool, out term.Output) error {
	layout := groupLayout(list, total)
	layout.NoHead = rowsOnly
	if len(layout.Rows) == 0 && !rowsOnly {
		text := "no GPUs"
		if list.By == ByNamespace {
			text = "no namespace holds or requests GPUs"
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	return layout.Write(w, out)
}

func groupLayout(list *v1alpha1.GPUGroupList, total int) *term.Layout {
	layout := &term.Layout{}
	for i := range list.Items {
		g := &list.Items[i]
		var cells []term.Cell
		drawn := bar(barColumns, g.GPUs, g.Held, g.Free)
		switch list.By {
		case ByResource:
			cells = append(resourceCells(g), term.Cells(fmt.Sprint(g.GPUs), fmt.Sprint(g.Nodes))...)
			cells = append(cells, unhealthy(g.Unhealthy))
			drawn = bar(barColumns, g.Devices.Total, g.Devices.Held, g.Devices.Free)
		case ByNamespace:
			cells = append(namespaceCells(g), unhealthy(g.Unhealthy))
			drawn = bar(barColumns, total, g.Held, total-g.Held)
		case ByNode:
			cells = append(term.Cells(cmp.Or(g.Name, "this machine"), fmt.Sprint(g.GPUs), fmt.Sprint(g.Held), fmt.Sprint(g.Free)), unhealthy(g.Unhealthy))
		default:
			cells = gpuCells(orNone(g.Name), g)
		}
		layout.Rows = append(layout.Rows, append(cells, term.Cell{Text: drawn}))
	}
	name := term.Column{Head: strings.ToUpper(list.By), Least: leastName}
	drawn := term.Column{Drop: 2}
	switch list.By {
	case ByResource:
		layout.Columns = []term.Column{name, number("DEVICES", 0), number("REQUESTED", 0), number("HELD", 0), number("FREE", 0), number("GPUS", 4), number("NODES", 5),
			number("UNHEALTHY", 3), drawn}
	case ByNamespace:
		layout.Columns = []term.Column{name, number("GPUS HELD", 0), number("DEVICES HELD", 0), number("REQUESTED", 0), number("NODES", 4), number("UNHEALTHY", 3), drawn}
	case ByNode:
		layout.Columns = []term.Column{name, number("GPUS", 0), number("HELD", 0), number("FREE", 0), number("UNHEALTHY", 0), drawn}
	default:
		layout.Columns = []term.Column{name, number("NODES", 3), number("GPUS", 0), number("HELD", 0), number("FREE", 0), number("UNHEALTHY", 0), drawn}
	}
	return layout
}

func number(head string, drop int) term.Column {
	return term.Column{Head: head, Right: true, Drop: drop}
}

func orNone(text string) string { return cmp.Or(text, "none") }
