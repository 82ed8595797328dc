package web

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

// view is what a template shows.
type view struct {
	Board  *v1alpha1.Board
	Now    time.Time
	Source string
	Title  string
	Text   string
	Error  string
	// Next is the address to which a sign-in leads; empty for the page.
	Next string
	// User is who is signed in.
	User string
}

// Filtered tells whether a part of the cluster is shown.
func (v *view) Filtered() bool { return v.Board.Filter != v1alpha1.BoardFilter{} }

// Part returns the address of the filtered part of the cluster with one more condition.
func (v *view) Part(key, value string) string {
	query := addressOf(v.Board.Filter)
	query.Set(key, value)
	return "?" + query.Encode()
}

// page has the templates.
type page struct{ templates *template.Template }

func parsePage() (*page, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"time": timeText, "age": ageText, "colour": colour, "shapes": shapes, "titleOf": titleOf, "corner": corner, "locked": locked,
	}).ParseFS(files, "page.html")
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}
	return &page{t}, nil
}

// write renders a template, as a whole or not at all.
func (p *page) write(w http.ResponseWriter, status int, name string, v *view) {
	var out bytes.Buffer
	if err := p.templates.ExecuteTemplate(&out, name, v); err != nil {
		http.Error(w, "render the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // The browser has gone.
}

// timeText returns a time of day, with the date and the zone.
func timeText(at any) string {
	switch at := at.(type) {
	case time.Time:
		return at.UTC().Format("2006-01-02 15:04:05Z")
	case metav1.Time:
		return timeText(at.Time)
	case *metav1.Time:
		return timeText(at.Time)
	}
	return ""
}

// ageText returns how long ago a time is.
func ageText(now time.Time, at metav1.Time) string {
	age := now.Sub(at.Time)
	switch {
	case at.IsZero():
		return "since a time that is not known"
	case age < time.Minute:
		return fmt.Sprintf("for %d s", max(0, int(age.Seconds())))
	case age < time.Hour:
		return fmt.Sprintf("for %d min", int(age.Minutes()))
	case age < 48*time.Hour:
		return fmt.Sprintf("for %d h", int(age.Hours()))
	}
	return fmt.Sprintf("for %d days", int(age.Hours()/24))
}

// colours is how many colours and patterns there are.
const colours = 8

// colour returns the class and the pattern of a namespace.
func colour(namespace string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(namespace)) // It returns no error.
	return fmt.Sprintf("c%d", sum.Sum32()%colours)
}

// The size of the picture of a GPU.
const (
	width  = 56.0
	height = 40.0
)

// shape is a rectangle of the picture of a GPU: of a class, or filled with a pattern.
type shape struct {
	X     string
	Y     string
	W     string
	H     string
	Class string
	Fill  string
}

func rect(x, y, w, h float64, class, fill string) shape {
	return shape{number(x), number(y), number(w), number(h), class, fill}
}

// number returns a length with at most one digit after the point.
func number(x float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0") }

// shapes returns the picture of a GPU: its MIG devices at their start and size, or itself.
func shapes(g v1alpha1.BoardGPU) []shape {
	made := []shape{rect(0, 0, width, height, "free", "")}
	if len(g.Parts) == 0 || g.Slices == 0 {
		return append(made, device(&g.BoardDevice, 0, width)...)
	}
	for i := range g.Parts {
		p := &g.Parts[i]
		x, w := width*float64(p.Start)/float64(g.Slices), width*float64(p.Size)/float64(g.Slices)
		made = append(made, device(&p.BoardDevice, x, w)...)
		if class := healthClass(gpu.State(p.State)); class != "" {
			made = append(made, rect(x, 0, w, faultHeight, class, ""))
		}
		made = append(made, rect(x, 0, w, height, "edge", ""))
	}
	return made
}

// faultHeight is the height of the mark of a MIG device that is not healthy.
const faultHeight = 5.0

// mostStripes is how many replicas have a stripe of their own.
const mostStripes = 14

// device returns the picture of a device: each holder's part of its width in the holder's colour, filled up to the memory that is used.
func device(d *v1alpha1.BoardDevice, x, w float64) []shape {
	var made []shape
	stripes := 1
	if d.Replicas > 1 {
		stripes = min(d.Replicas, mostStripes)
	}
	stripe := w / float64(stripes)
	for i := range d.Holders {
		h := &d.Holders[i]
		at := x
		if stripes > 1 {
			at += stripe * float64((max(1, h.Share)-1)%stripes)
		}
		class, pattern := holderClass(h)
		made = append(made, rect(at, 0, stripe, height, "held "+class, ""))
		if d.MemoryUsedBytes != nil && d.MemoryBytes > 0 {
			used := height * min(1, float64(*d.MemoryUsedBytes)/float64(d.MemoryBytes))
			made = append(made, rect(at, height-used, stripe, used, "used "+class, ""))
		}
		if pattern != "" {
			made = append(made, rect(at, 0, stripe, height, "", pattern))
		}
		if d.Idle {
			made = append(made, rect(at, 0, stripe, height, "", "idle"))
		}
		if stripes == 1 {
			break // A second holder is a problem, which has its own list.
		}
	}
	for i := 1; i < stripes; i++ {
		made = append(made, rect(x+stripe*float64(i), 0, 0.5, height, "mark", ""))
	}
	return made
}

func holderClass(h *v1alpha1.BoardHolder) (class, pattern string) {
	switch {
	case h.Hidden:
		return "c-hidden", ""
	case h.Namespace == "":
		return "c-none", ""
	}
	return colour(h.Namespace), colour(h.Namespace)
}

// corner returns the class of the corner that shows the health of a GPU and its MIG devices, or nothing if they are healthy.
func corner(g v1alpha1.BoardGPU) string {
	worst := gpu.State(g.Health.State)
	for i := range g.Parts {
		if part := gpu.State(g.Parts[i].State); part.Worse(worst) {
			worst = part
		}
	}
	return healthClass(worst)
}

func healthClass(state gpu.State) string {
	switch state.Class() {
	case gpu.Healthy:
		return ""
	case gpu.Degraded, gpu.Draining:
		return "warn"
	}
	return "bad"
}

// locked tells whether a GPU or one of its MIG devices is not allocated to further pods.
func locked(g v1alpha1.BoardGPU) bool {
	return g.Draining != "" || slices.ContainsFunc(g.Parts, func(p v1alpha1.BoardPart) bool { return p.Draining != "" })
}

// mostHolders is how many holders a title names.
const mostHolders = 8

// titleOf describes a GPU in words.
func titleOf(g v1alpha1.BoardGPU) string {
	lines := []string{fmt.Sprintf("GPU %d, %s", g.Index, g.Product), g.UUID}
	if g.NUMANode >= 0 {
		lines = append(lines, fmt.Sprintf("NUMA node %d", g.NUMANode))
	}
	text := g.Health.State
	for i := range g.Health.Causes {
		text += fmt.Sprintf("; %s: %s", g.Health.Causes[i].Code, g.Health.Causes[i].Message)
	}
	lines = append(lines, text)
	lines = append(lines, describe(&g.BoardDevice, len(g.Parts) > 0)...)
	for i := range g.Parts {
		p := &g.Parts[i]
		lines = append(lines, fmt.Sprintf("MIG %s at slice %d, %s", p.Profile, p.Start, p.State))
		for _, line := range describe(&p.BoardDevice, false) {
			lines = append(lines, "  "+line)
		}
	}
	return strings.Join(lines, "\n")
}

// describe describes the use of a device in words.
func describe(d *v1alpha1.BoardDevice, divided bool) []string {
	var lines []string
	for i := range d.Holders {
		if i == mostHolders {
			lines = append(lines, fmt.Sprintf("and %d more holders", len(d.Holders)-i))
			break
		}
		lines = append(lines, holderText(&d.Holders[i]))
	}
	switch {
	case len(d.Holders) > 0 || divided:
	case d.Resource == "":
		lines = append(lines, "not advertised")
	default:
		lines = append(lines, "free, as "+d.Resource)
	}
	if d.MemoryUsedBytes != nil && d.MemoryBytes > 0 {
		lines = append(lines, fmt.Sprintf("%.1f of %.0f GiB used", float64(*d.MemoryUsedBytes)/(1<<30), float64(d.MemoryBytes)/(1<<30)))
	}
	if d.Idle {
		lines = append(lines, "idle: nothing was computed")
	}
	if d.Draining != "" {
		lines = append(lines, "draining: "+d.Draining)
	}
	return lines
}

func holderText(h *v1alpha1.BoardHolder) string {
	name := h.Namespace + "/" + h.Name
	if h.Hidden || h.Namespace == "" {
		name = ""
	}
	text := strings.TrimSpace("held by " + strings.ToLower(cmp.Or(h.Kind, "pod")) + " " + name)
	if h.Hidden {
		text += " of a namespace whose pods you may not list"
	}
	if h.Share > 0 {
		text += fmt.Sprintf(", share %d", h.Share)
	}
	if h.Since != nil {
		text += ", since " + timeText(h.Since)
	}
	return text
}
