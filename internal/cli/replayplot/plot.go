// Package replayplot draws the curves of a replay report: as SVG or PNG, and as text for terminals.
//
// It guarantees that the same report gives the same bytes. It must not import anything of Berth but internal/cluster/replay.
package replayplot

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guptarohit/asciigraph"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/berth-gpu/berth/internal/cluster/replay"
)

// textWidth and textHeight are the size of the drawing for terminals in characters, without its axes.
const textWidth, textHeight = 70, 12

// Text returns the unallocated GPUs (in per cent of the capacity) by what was requested, as text: from 80 % on, where the
// policies begin to differ, or from the beginning where less was requested.
func Text(report *replay.Report) string {
	var series [][]float64
	var names []string
	from := 0
	for _, result := range report.Results {
		if len(result.Curve) > 90 {
			from = 80
		}
	}
	for _, result := range report.Results {
		var values []float64
		for _, point := range result.Curve[min(from, len(result.Curve)-1):] {
			values = append(values, 100-point.Allocated)
		}
		series, names = append(series, values), append(names, result.Policy)
	}
	if len(series) == 0 {
		return ""
	}
	end := replay.EndPercent(report.Inflate)
	text := asciigraph.PlotMany(series, asciigraph.Width(textWidth), asciigraph.Height(textHeight), asciigraph.Precision(1), asciigraph.LowerBound(0),
		asciigraph.Caption(fmt.Sprintf("GPUs not allocated, %% of the capacity, while %d to %d %% are requested", from, end)))
	if len(names) > 1 {
		order := slices.SortedStableFunc(slices.Values(report.Results), func(a, b replay.Result) int { return cmp.Compare(last(a), last(b)) })
		for i := range order {
			names[i] = order[i].Policy
		}
		text += "\nThe lines at the right end, from the top: " + strings.Join(names, ", ")
	}
	return text
}

// last is what is allocated at the end of a curve.
func last(r replay.Result) float64 { return r.Curve[len(r.Curve)-1].Allocated }

// Check returns an error for a file name whose ending is no format.
func Check(file string) error {
	switch filepath.Ext(file) {
	case ".svg", ".png":
		return nil
	}
	return fmt.Errorf("--plot %s: want a name that ends in .svg or .png", file)
}

// Image returns the drawing in the format that the name of the file ends in.
func Image(report *replay.Report, file string) ([]byte, error) {
	if err := Check(file); err != nil {
		return nil, err
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%d nodes, %d GPUs", report.Nodes, report.GPUs)
	p.X.Label.Text, p.Y.Label.Text = "requested, % of the GPU capacity", "allocated, % of the GPU capacity"
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	for i, result := range report.Results {
		var points plotter.XYs
		for _, point := range result.Curve {
			points = append(points, plotter.XY{X: float64(point.Requested), Y: point.Allocated})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", result.Policy, err)
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i)
		p.Add(line)
		p.Legend.Add(result.Policy, line)
	}
	to, err := p.WriterTo(20*vg.Centimeter, 12*vg.Centimeter, filepath.Ext(file)[1:])
	if err != nil {
		return nil, fmt.Errorf("draw %s: %w", file, err)
	}
	var out bytes.Buffer
	if _, err := to.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("draw %s: %w", file, err)
	}
	return out.Bytes(), nil
}
