package mig

import (
	"bytes"
	"fmt"
	"strings"
)

// The widths of a memory slice in a picture.
const (
	minCell = 5
	maxCell = 14
)

// The characters that fill the rest of an instance in a picture, after its name.
const (
	fillKept    = '='
	fillHeld    = '#'
	fillGone    = '-'
	fillBlocked = '!'
	fillNew     = '+'
	fillFree    = '.'
)

const legend = "= kept  # kept, held  + new  - gone  ! gone once it has no holder  . free\n"

// Describe describes plans for people and for transcripts: for each GPU a bar of its memory slices before and after,
// the steps in order, and the holders that block the plan.
func Describe(plans []GPUPlan, gpus []GPU) string {
	if len(plans) == 0 {
		return "nothing to do: the layout names none of the node's GPUs\n"
	}
	var text strings.Builder
	drawn := false
	for i := range plans {
		g := &GPU{UUID: plans[i].UUID, Index: plans[i].Index}
		for j := range gpus {
			if gpus[j].UUID == g.UUID {
				g = &gpus[j]
			}
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		fmt.Fprintf(&text, "GPU %d%s: %s\n", g.Index, identity(g), summary(&plans[i]))
		if g.Geometry.MemorySlices > 0 {
			drawn = describeBars(&text, &plans[i], g) || drawn
		}
		describeSteps(&text, &plans[i])
	}
	if drawn {
		text.WriteString("\n" + legend)
	}
	return text.String()
}

func identity(g *GPU) string {
	text := ""
	if g.Product != "" {
		text = " " + g.Product
	}
	if g.UUID != "" {
		text += fmt.Sprintf(" (%s)", g.UUID)
	}
	return text
}

// summary returns a plan in one line.
func summary(plan *GPUPlan) string {
	switch {
	case plan.Refused != "":
		return "refused"
	case !plan.Changes() && len(plan.Keep) == 0 && !plan.Wanted.Enabled:
		return "nothing to do, MIG stays off"
	case !plan.Changes():
		return fmt.Sprintf("nothing to do, %d kept", len(plan.Keep))
	}
	text := fmt.Sprintf("%d kept, %d destroyed, %d created", len(plan.Keep), len(plan.Destroy), len(plan.Create))
	if plan.SetMode != nil {
		text += ", MIG turned " + onOff(*plan.SetMode)
	}
	if n := len(plan.Blockers); n > 0 {
		text += ", waits"
	}
	return text
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// bar is a picture of a GPU's memory slices.
type bar struct {
	cell   int
	slices int
	text   []byte
}

func newBar(cell, slices int) *bar {
	b := &bar{cell: cell, slices: slices, text: bytes.Repeat([]byte{fillFree}, cell*slices+1)}
	for i := 0; i <= slices; i++ {
		b.text[i*cell] = '|'
	}
	return b
}

// draw adds an instance to the picture, if its placement is known.
func (b *bar) draw(name string, start, size int, fill byte) {
	if start < 0 || size <= 0 || start > b.slices-size {
		return
	}
	inside := b.text[start*b.cell+1 : (start+size)*b.cell]
	for i := range inside {
		inside[i] = fill
	}
	copy(inside[:len(inside)-1], name)
}

// describeBars draws the GPU before and, if it changes, after the plan. It returns false when there is nothing to draw
// because MIG is off and stays off.
func describeBars(text *strings.Builder, plan *GPUPlan, g *GPU) bool {
	now := newBar(cellWidth(plan, g), min(g.Geometry.MemorySlices, maxSlices))
	then := newBar(now.cell, now.slices)
	if plan.Refused != "" {
		for _, one := range g.Instances {
			now.draw(one.Profile, one.Start, one.Size, keptFill(one))
		}
	}
	for _, one := range plan.Keep {
		now.draw(one.Profile, one.Start, one.Size, keptFill(one))
		then.draw(one.Profile, one.Start, one.Size, keptFill(one))
	}
	for _, one := range plan.Destroy {
		fill := byte(fillGone)
		if len(one.Holders) > 0 {
			fill = fillBlocked
		}
		now.draw(one.Profile, one.Start, one.Size, fill)
	}
	for _, one := range plan.Create {
		then.draw(one.Profile, one.Start, one.Size, fillNew)
	}
	if !g.Enabled && !plan.Changes() {
		return false
	}
	scale := "       "
	for i := range now.slices {
		scale += fmt.Sprintf(" %-*d", now.cell-1, i)
	}
	text.WriteString(strings.TrimRight(scale, " ") + "\n")
	describeBar(text, "now ", now, g.Enabled)
	if plan.Changes() {
		describeBar(text, "then", then, plan.Wanted.Enabled)
	}
	return true
}

func describeBar(text *strings.Builder, label string, b *bar, enabled bool) {
	picture := string(b.text)
	if !enabled {
		picture = "|" + fmt.Sprintf(" %-*s", len(b.text)-3, "MIG off") + "|"
	}
	fmt.Fprintf(text, "  %s %s\n", label, picture)
}

func keptFill(one Instance) byte {
	if len(one.Holders) > 0 {
		return fillHeld
	}
	return fillKept
}

// cellWidth returns a width, within bounds, in which the names fit and one letter is left for the fill.
func cellWidth(plan *GPUPlan, g *GPU) int {
	width := minCell
	fit := func(name string, size int) {
		if size > 0 {
			width = max(width, (len(name)+2+size-1)/size)
		}
	}
	for _, one := range g.Instances {
		fit(one.Profile, one.Size)
	}
	for _, one := range plan.Create {
		fit(one.Profile, one.Size)
	}
	return min(width, maxCell)
}

// describeSteps lists what is done, in order, and what it waits for.
func describeSteps(text *strings.Builder, plan *GPUPlan) {
	if plan.Refused != "" {
		fmt.Fprintf(text, "  %s\n", plan.Refused)
		return
	}
	for _, b := range plan.Blockers {
		what := "the GPU"
		if b.Instance.Profile != "" || b.Instance.UUID != "" {
			what = b.Instance.phrase()
		}
		fmt.Fprintf(text, "  waits for %s: holds %s\n", strings.Join(b.Holders, ", "), what)
	}
	step := 0
	say := func(format string, args ...any) {
		step++
		fmt.Fprintf(text, "  %d. %s\n", step, fmt.Sprintf(format, args...))
	}
	for i := range plan.Destroy {
		say("destroy %s", plan.Destroy[i].phrase())
	}
	if plan.SetMode != nil {
		say("turn MIG %s", onOff(*plan.SetMode))
	}
	if plan.Reset {
		say("reset the GPU")
	}
	if plan.Unplanned {
		say("plan the devices: this driver lists MIG profiles only while MIG is on")
	}
	for _, one := range plan.Create {
		say("create %s at slice %d", one.Profile, one.Start)
	}
}

// phrase returns the description of an instance.
func (one *Instance) phrase() string {
	text := fmt.Sprintf("%s at slice %d (GI %d", one.Profile, one.Start, one.GI)
	switch {
	case one.UUID == "":
		text += ", without a compute instance"
	default:
		text += ", " + string(one.UUID)
	}
	for _, sibling := range one.Siblings {
		text += ", " + string(sibling)
	}
	return text + ")"
}
