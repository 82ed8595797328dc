package metrics_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// maxPage is the maximum size for 8 GPUs, in both vocabularies together.
const maxPage = 200 << 10

// TestPages compares the pages of three machines in both vocabularies, and the objects of berth top, with golden files,
// and checks Prometheus' rules.
func TestPages(t *testing.T) {
	for name, make := range worlds() {
		t.Run(name, func(t *testing.T) {
			in := make(t)
			berth, dcgm := metrics.Berth(in), metrics.DCGM(in)
			golden.File(t, "testdata/"+name+".berth.txt", string(berth))
			golden.File(t, "testdata/"+name+".dcgm.txt", string(dcgm))
			object, err := json.MarshalIndent(metrics.Samples(in), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, "testdata/"+name+".json", string(append(object, '\n')))
			t.Logf("%d bytes in Berth's names, %d in DCGM's", len(berth), len(dcgm))
			if len(berth)+len(dcgm) > maxPage {
				t.Errorf("the page has %d bytes, want at most %d", len(berth)+len(dcgm), maxPage)
			}
			lint(t, berth)
			unique(t, berth)
			unique(t, dcgm)
			// DCGM's names break Prometheus' rules, but the page must be readable.
			if _, err := promlint.New(bytes.NewReader(dcgm)).Lint(); err != nil {
				t.Errorf("DCGM page: %v", err)
			}
		})
	}
}

// lint applies Prometheus' own rules for names, types and helps.
func lint(t *testing.T, page []byte) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// unique checks that no series occurs twice, which Prometheus refuses.
func unique(t *testing.T, page []byte) {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		series := line[:strings.LastIndexByte(line, ' ')]
		if seen[series] {
			t.Errorf("twice: %s", series)
		}
		seen[series] = true
	}
}

// TestOrder checks that the order of holdings, XIDs and owners does not matter.
func TestOrder(t *testing.T) {
	in := worlds()["a100-mixed-use"](t)
	want := append(metrics.Berth(in), metrics.DCGM(in)...)
	slices.Reverse(in.Holdings)
	slices.Reverse(in.XIDs)
	if got := append(metrics.Berth(in), metrics.DCGM(in)...); !bytes.Equal(got, want) {
		t.Error(cmp.Diff(string(want), string(got)))
	}
}

// TestPartitionedPageSize: 8 GPUs with 7 MIG devices each, all held, with profiling.
func TestPartitionedPageSize(t *testing.T) {
	m := machine(t, "h100x8")
	for slot := range 8 {
		partition(t, m, slot, 7)
	}
	in := observe(t, m)
	for _, g := range in.Snapshot.GPUs {
		for _, d := range g.MIG.Devices {
			in.Holdings = append(in.Holdings, holding(gpu.DeviceKey{GPU: g.UUID, MIG: d.UUID},
				owner(fmt.Sprintf("serving-%d-%d", g.Index, d.Index)), "nvidia.com/mig-1g.10gb", "exclusive"))
		}
	}
	if len(in.Holdings) != 56 {
		t.Fatalf("%d MIG devices, want 56", len(in.Holdings))
	}
	berth, dcgm := metrics.Berth(in), metrics.DCGM(in)
	lint(t, berth)
	unique(t, berth)
	unique(t, dcgm)
	t.Logf("%d bytes in Berth's names, %d in DCGM's", len(berth), len(dcgm))
	if max(len(berth), len(dcgm)) > maxPage {
		t.Errorf("%d and %d bytes, want at most %d in each vocabulary", len(berth), len(dcgm), maxPage)
	}
}

// TestAbsent checks that a driver that reports nothing results in a page without measurements, not in one of zeros.
func TestAbsent(t *testing.T) {
	in := worlds()["mixed"](t)
	for i := range in.Sample.GPUs {
		in.Sample.GPUs[i] = gpu.GPUSample{GPU: in.Sample.GPUs[i].GPU}
	}
	for _, page := range []string{string(metrics.Berth(in)), string(metrics.DCGM(in))} {
		for _, word := range []string{"celsius", "_bytes", "_ratio", "watts", "clock_hertz", "GPU_TEMP", "FB_", "UTIL"} {
			if strings.Contains(page, word) {
				t.Errorf("a page without readings has %q", word)
			}
		}
	}
	if diff := cmp.Diff("", string(metrics.DCGM(metrics.Input{}))); diff != "" {
		t.Error(diff)
	}
}

func scrape(t *testing.T, handler http.Handler) string {
	t.Helper()
	response := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.8,text/plain;q=0.5")
	request.Header.Set("Accept-Encoding", "gzip")
	handler.ServeHTTP(response, request)
	if response.Code != http.StatusOK || !strings.HasPrefix(response.Header().Get("Content-Type"), "text/plain") {
		t.Fatalf("answer %d, %s", response.Code, response.Header().Get("Content-Type"))
	}
	return response.Body.String()
}

// TestPage checks that the last rendering is served, with the program's own metrics before it and its age after it.
func TestPage(t *testing.T) {
	own := prometheus.NewPedanticRegistry()
	own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_own", Help: "Of the program itself."}))
	now := moment()
	page := metrics.NewPage(metrics.PageDeps{Own: own, Now: func() time.Time { return now }})

	if got := scrape(t, page); !strings.Contains(got, "berth_own 0") || strings.Contains(got, "berth_gpu_") {
		t.Errorf("before the first sample:\n%s", got)
	}
	early := httptest.NewRecorder()
	page.ServeSamples(early, httptest.NewRequest(http.MethodGet, "/samples", nil))
	if early.Code != http.StatusServiceUnavailable {
		t.Errorf("samples before the first: %d", early.Code)
	}

	in := worlds()["mixed"](t)
	page.Render(in)
	now = now.Add(42 * time.Second)
	got := scrape(t, page)
	for _, want := range []string{"berth_own 0\n", "berth_gpu_sample_age_seconds 42\n", "berth_gpu_temperature_celsius{", "DCGM_FI_DEV_GPU_TEMP{"} {
		if !strings.Contains(got, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if problems, err := promlint.New(strings.NewReader(got)).Lint(); err != nil {
		t.Error(err)
	} else if slices.ContainsFunc(problems, func(p promlint.Problem) bool { return strings.HasPrefix(p.Metric, "berth_") }) {
		t.Error(problems)
	}
	response := httptest.NewRecorder()
	page.ServeSamples(response, httptest.NewRequest(http.MethodGet, "/samples", nil))
	var object v1alpha1.GPUSamples
	if err := json.Unmarshal(response.Body.Bytes(), &object); err != nil {
		t.Fatal(err)
	}
	if object.Kind != v1alpha1.KindGPUSamples || object.APIVersion != v1alpha1.APIVersion || object.AgeSeconds != 42 || len(object.Items) != len(in.Snapshot.GPUs) {
		t.Errorf("samples: %s %s, age %v, %d items", object.APIVersion, object.Kind, object.AgeSeconds, len(object.Items))
	}
}

// BenchmarkRender renders the page of 8 GPUs in both vocabularies, and the objects of berth top.
func BenchmarkRender(b *testing.B) {
	in := worlds()["h100-whole"](b)
	page := metrics.NewPage(metrics.PageDeps{Own: prometheus.NewRegistry()})
	b.ReportAllocs()
	for b.Loop() {
		page.Render(in)
	}
}
