package term

import "strings"

// Part is a part of a bar.
type Part struct {
	Count int
	Rune  rune
}

// Bar returns parts of a total in some columns, each at least one column wide if it is not empty, as far as they fit. What no part
// takes is drawn as rest.
func Bar(columns, total int, rest rune, parts ...Part) string {
	if columns <= 0 {
		return ""
	}
	var bar strings.Builder
	left, before, drawn := columns, 0, 0
	for _, part := range parts {
		if part.Count <= 0 || total <= 0 {
			continue
		}
		before += part.Count
		end := (min(before, total)*columns + total/2) / total
		wide := min(left, max(1, end-drawn))
		if before < total && left == wide && wide > 1 {
			wide-- // What is left of the total stays visible.
		}
		bar.WriteString(strings.Repeat(string(part.Rune), wide))
		left, drawn = left-wide, drawn+wide
	}
	bar.WriteString(strings.Repeat(string(rest), left))
	return bar.String()
}

// Spark returns ratios from 0 to 1 as a line of blocks, the last at the right end. A value below 0 is not known.
func Spark(ratios []float64, columns int) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	if len(ratios) > columns {
		ratios = ratios[len(ratios)-columns:]
	}
	var line strings.Builder
	line.WriteString(strings.Repeat(" ", columns-len(ratios)))
	for _, ratio := range ratios {
		if ratio < 0 {
			line.WriteRune('·')
			continue
		}
		line.WriteRune(blocks[min(len(blocks)-1, int(ratio*float64(len(blocks))))])
	}
	return line.String()
}
