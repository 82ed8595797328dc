package metrics

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// PageDeps is what a Page needs.
type PageDeps struct {
	// Own are the metrics of the program itself, which are gathered at each scrape: they must come from memory,
	// and have other names than those of this package.
	Own prometheus.Gatherer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Page serves the bytes of the last rendering. It never waits for a rendering or for hardware.
type Page struct {
	deps   PageDeps
	own    http.Handler
	latest atomic.Pointer[rendered]
}

// rendered is one sample's page.
type rendered struct {
	body    []byte
	took    time.Duration
	samples v1alpha1.GPUSamples
}

// NewPage makes a page without any GPUs on it.
func NewPage(deps PageDeps) *Page {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Page{deps: deps, own: promhttp.HandlerFor(deps.Own, promhttp.HandlerOpts{DisableCompression: true})}
}

// Render makes the page of an input, which replaces the last one. Call it after each sample, and when the
// holdings or the health change.
func (p *Page) Render(in Input) {
	started := p.deps.Now()
	body := append(Berth(in), DCGM(in)...)
	p.latest.Store(&rendered{body: body, samples: Samples(in), took: p.deps.Now().Sub(started)})
}

// ServeHTTP answers a scrape in Prometheus' text format: the program's own metrics, the page, and its age.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept") // the page exists in one format
	p.own.ServeHTTP(w, plain)
	now := p.latest.Load()
	if now == nil {
		return
	}
	t := &text{}
	ageOf(t, now.age(p.deps.Now()), now.took.Seconds())
	// An error means that the client has disconnected.
	_, _ = w.Write(now.body)
	_, _ = w.Write(t.out)
}

// ageOf writes the age of the sample on the page in seconds, and how long its rendering took.
func ageOf(t *text, age, took float64) {
	t.name(prefix+"sample_age_seconds", gauge, "How old the sample on this page is.")
	t.series(prefix+"sample_age_seconds", age)
	t.name(prefix+"render_duration_seconds", gauge, "How long the rendering of this page took.")
	t.series(prefix+"render_duration_seconds", took)
}

func (r *rendered) age(now time.Time) float64 { return max(0, now.Sub(r.samples.Time.Time).Seconds()) }

// ServeSamples returns the same sample as a GPUSamples object, or 503 before the first one.
func (p *Page) ServeSamples(w http.ResponseWriter, _ *http.Request) {
	now := p.latest.Load()
	if now == nil {
		http.Error(w, "the GPUs were not sampled yet; try again in a few seconds", http.StatusServiceUnavailable)
		return
	}
	samples := now.samples
	samples.AgeSeconds = now.age(p.deps.Now())
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(samples)
}
