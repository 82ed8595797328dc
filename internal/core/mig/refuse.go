package mig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// counts returns the wanted devices by the position of their shape; profiles that the GPU does not have are left out.
func (t *table) counts(devices map[string]int) []int {
	counts := make([]int, len(t.shapes))
	for i := range t.shapes {
		counts[i] = devices[t.shapes[i].Name]
	}
	return counts
}

// refusal returns why the GPU cannot reach the wanted state whichever holders end, and what to change; empty when it
// can.
func refusal(t *table, g *GPU, wanted Wanted) string {
	names := slices.Sorted(maps.Keys(wanted.Devices))
	for _, name := range names {
		if n := wanted.Devices[name]; n < 0 {
			return fmt.Sprintf("%d x %s: a number of devices cannot be negative; leave the profile out to have none", n, name)
		}
	}
	if !wanted.Enabled {
		for _, name := range names {
			if n := wanted.Devices[name]; n > 0 {
				return fmt.Sprintf("%d x %s with MIG off: leave the devices out, or turn MIG on", n, name)
			}
		}
		if len(wanted.Placed) > 0 {
			return fmt.Sprintf("%s with MIG off: leave the devices out, or turn MIG on", places(wanted.Placed))
		}
		return ""
	}
	if !g.Capable {
		return fmt.Sprintf("%s has no MIG: leave GPU %d out of the layout", product(g), g.Index)
	}
	if len(wanted.Placed) > 0 {
		return t.refusePlaced(g, &wanted)
	}
	for _, name := range names {
		if t.find(name) < 0 {
			return t.unknown(g, name)
		}
	}
	return t.tooMuch(t.counts(wanted.Devices))
}

func product(g *GPU) string {
	if g.Product == "" {
		return "the GPU"
	}
	return g.Product
}

// unknown says that the GPU has no such profile, and lists those that it has.
func (t *table) unknown(g *GPU, name string) string {
	if len(t.shapes) == 0 {
		return fmt.Sprintf("profile %s: the driver lists no MIG profiles of %s; run the agent privileged, or "+
			"update the driver", name, product(g))
	}
	known := t.names()
	if compute, whole, ok := strings.Cut(name, "c."); ok && !strings.Contains(compute, "g") && slices.Contains(known, whole) {
		return fmt.Sprintf("profile %s: compute instances smaller than their GPU instance are not supported; write %s", name, whole)
	}
	hint := ""
	if nearest := spelling.Nearest(name, known); nearest != "" {
		hint = fmt.Sprintf("; did you mean %s?", nearest)
	}
	return fmt.Sprintf("%s has no profile %q%s It has %s", product(g), name, sentenceEnd(hint), strings.Join(known, ", "))
}

// sentenceEnd completes a sentence that has no punctuation mark of its own.
func sentenceEnd(text string) string {
	if strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// tooMuch returns why that many devices of each shape fit on no GPU of this kind, even an empty one.
func (t *table) tooMuch(counts []int) string {
	if t.fits(counts) {
		return ""
	}
	what, end := t.phrase(counts), ""
	if most := t.phrase(t.most(counts)); most != "" {
		end = "; the most of that it can have is " + most
	}
	memory, compute, media := t.sums(counts)
	if memory > t.geometry.MemorySlices || compute > t.geometry.ComputeSlices {
		verb := "need"
		if sum(counts) == 1 {
			verb = "needs"
		}
		return fmt.Sprintf("%s %s %d memory slices and %d compute slices, and the GPU has %d and %d%s",
			what, verb, memory, compute, t.geometry.MemorySlices, t.geometry.ComputeSlices, end)
	}
	for i, n := range counts {
		if s := &t.shapes[i]; n > s.Max {
			if n == sum(counts) {
				end = "" // it would repeat the number
			}
			return fmt.Sprintf("%d x %s: the GPU can have %d of them at most%s", n, s.Name, s.Max, end)
		}
	}
	if media > 1 {
		return fmt.Sprintf("%s: a GPU has media engines for one +me device, and this asks for %d%s", what, media, end)
	}
	if t.starved(counts) {
		return fmt.Sprintf("%s: a +me.all device has all media engines of the GPU, so only -me devices can be beside it%s", what, end)
	}
	return fmt.Sprintf("%s: there are slices enough, but no way to place them all (%s)%s", what, t.starts(counts), end)
}

func sum(counts []int) int {
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

// phrase formats devices, the largest first: "1 x 3g.20gb and 2 x 1g.5gb".
func (t *table) phrase(counts []int) string {
	var parts []string
	for i, n := range counts {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d x %s", n, t.shapes[i].Name))
		}
	}
	return phrase.And(parts)
}

// starts lists where each shape may start.
func (t *table) starts(counts []int) string {
	var parts []string
	for i, n := range counts {
		if s := &t.shapes[i]; n > 0 {
			var starts []string
			for _, p := range slices.Backward(s.places) {
				starts = append(starts, fmt.Sprint(p.start))
			}
			parts = append(parts, fmt.Sprintf("%s takes %d slices from %s", s.Name, s.Size, strings.Join(starts, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}
