package promql_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/hardware/nvidia"
	"github.com/berth-gpu/berth/internal/hardware/nvidiatest"
	"github.com/berth-gpu/berth/internal/hardware/sim"
	"github.com/berth-gpu/berth/internal/node/agent/metricsync"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

// counters is the list that docs/howto.md switches on.
const counters = "../../docs/examples/dcgm-counters.csv"

// The scrapes: one each half minute, for ten minutes.
const (
	interval = 30 * time.Second
	scrapes  = 21
)

func start() time.Time { return time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC) }

// query is a line of queries.tsv.
type query struct {
	source string
	text   string
	reason string
}

func queries(t *testing.T) []query {
	t.Helper()
	text, err := os.ReadFile("queries.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var all []query
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := append(strings.Split(strings.TrimSpace(line), "\t"), "")
		if len(parts) < 3 {
			t.Fatalf("%q is not a query with its source", line)
		}
		all = append(all, query{parts[0], parts[1], parts[2]})
	}
	return all
}

// expression is the query as Grafana sends it.
func (q query) expression() string {
	return strings.NewReplacer("$Hostname", ".*", "$gpu", ".*", "$hostname", "node-a", "$__interval", "5m").Replace(q.text)
}

// node is a simulated node with its agent's page.
type node struct {
	name    string
	config  *v1alpha1.AgentConfig
	machine *sim.Machine
	page    *metrics.Page
	sample  func(now time.Time)
}

// shared is the GPU of node-a that four pods share, the last of which uses nothing.
const shared = 4

// newNode returns a node on which a pod holds each GPU but the shared one, and an XID is reported shortly before the end.
func newNode(t *testing.T, name, profile string, config *v1alpha1.AgentConfig) *node {
	t.Helper()
	list := metrics.ReadCounterList(config)
	if len(list.Problems) > 0 {
		t.Fatal(list.Problems)
	}
	simulated := nvidiatest.New(t, profile)
	snapshot := simulated.Scan()
	now := start()
	sampler := simulated.Adapter.Sampler(nvidia.SamplerDeps{Optional: list.Optional, Now: func() time.Time { return now }})
	sampler.Sample(t.Context()) // profiling compares two samples
	n := &node{name: name, config: config, machine: simulated.Machine, page: metrics.NewPage(metrics.PageDeps{Own: prometheus.NewRegistry(), Now: start})}
	xids := &metricsync.XIDs{}
	xids.Add(gpu.Event{GPU: snapshot.GPUs[0].UUID, Code: gpu.XID(94), Time: start().Add((scrapes - 4) * interval)})
	in := metrics.Input{Node: name, Snapshot: snapshot, Vendors: []gpu.Traits{simulated.Adapter.Traits()}, DCGMFields: list.Fields, XIDs: xids.All(), Owners: map[int]metrics.Owner{}}
	hold := func(key gpu.DeviceKey, pod, mode string) metrics.Owner {
		holder := gpu.Holder{Kind: gpu.HolderPod, Namespace: "team", Name: pod, Container: "main", PodUID: pod}
		in.Holdings = append(in.Holdings, metrics.HoldingsOf(gpu.Holding{Key: key, Holder: holder}, mode)...)
		return in.Holdings[len(in.Holdings)-1].Owner
	}
	for i := range snapshot.GPUs {
		if i != shared {
			hold(gpu.DeviceKey{GPU: snapshot.GPUs[i].UUID}, fmt.Sprintf("train-%d", i), "exclusive")
			continue
		}
		for share := 1; share <= 4; share++ {
			in.Owners[200+share] = hold(gpu.DeviceKey{GPU: snapshot.GPUs[i].UUID, Share: share}, fmt.Sprintf("slice-%d", share), "timeslicing")
		}
	}
	n.sample = func(at time.Time) {
		now = at
		in.Sample = sampler.Sample(t.Context())
		n.page.Render(in)
	}
	return n
}

// faulty is the scrape before which the GPUs get faults: within the last five minutes.
const faulty = scrapes - 6

// work lets the GPUs of the node do work until a scrape.
func (n *node) work(t *testing.T, scrape int) {
	t.Helper()
	for slot := range shared + 1 {
		w := sim.Work{
			SM: 80, Memory: 40, Encoder: 2, Decoder: 1, PowerWatts: 300, Joules: uint64(scrape) * 9000, PCIeKBps: 2_000_000, NVLinkKiB: uint64(scrape) << 30,
			ThrottledMillis: uint64(scrape) * 100, Programs: []sim.Program{{PID: 100 + slot, MemoryMiB: 14_000, SM: 80, Memory: 40}},
		}
		if slot == 3 {
			w.Programs[0].MemoryMiB = 78_500
		}
		if slot == shared { // of three pods and of none
			w.Programs = []sim.Program{{PID: 201, MemoryMiB: 26_001}, {PID: 202, MemoryMiB: 40_000}, {PID: 203, MemoryMiB: 12_000}, {PID: 1, MemoryMiB: 500}}
		}
		if err := n.machine.SetWork(fmt.Sprint(slot), w); err != nil && n.name == "node-a" {
			t.Fatal(err)
		}
	}
	if scrape != faulty {
		return
	}
	faults := map[string][]sim.Fault{
		"node-a": {{GPU: "0", ECC: 2}, {GPU: "1", RowRemap: "failed"}, {GPU: "1", NVLinkErrors: 7}, {GPU: "2", Temperature: 92}, {GPU: "2", Throttle: "power-brake"}, {GPU: "3", RowRemap: "pending"}},
		"node-b": {{GPU: "0", RetiredPages: true}},
	}
	for _, fault := range faults[n.name] {
		if err := n.machine.Inject(fault); err != nil {
			t.Fatal(err)
		}
	}
}

// database returns what Prometheus has after its scrapes of two nodes.
func database(t *testing.T, config v1alpha1.AgentConfig) storage.Queryable {
	t.Helper()
	db := teststorage.New(t)
	for name, profile := range map[string]string{"node-a": "h100x8", "node-b": "t4x4"} {
		n := newNode(t, name, profile, &config)
		for scrape := range scrapes {
			now := start().Add(time.Duration(scrape) * interval)
			n.work(t, scrape)
			n.sample(now)
			n.scrape(t, db, now)
		}
	}
	return db
}

// scrape stores the page as Prometheus does, with the labels of the target.
func (n *node) scrape(t *testing.T, db storage.Appendable, now time.Time) {
	t.Helper()
	answer := httptest.NewRecorder()
	n.page.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	parser, err := textparse.New(answer.Body.Bytes(), answer.Header().Get("Content-Type"), labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	appender := db.Appender(t.Context())
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		parser.Labels(&series)
		_, _, value := parser.Series()
		of := labels.NewBuilder(series).Set("instance", n.name+":9400").Set("job", "berth-agent").Labels()
		if _, err := appender.Append(0, of, now.UnixMilli(), value); err != nil {
			t.Fatalf("%s: %v", of, err)
		}
	}
	if err := appender.Commit(); err != nil {
		t.Fatal(err)
	}
}

// evaluate returns the series of a query at the end.
func evaluate(t *testing.T, engine *promql.Engine, db storage.Queryable, q query) promql.Vector {
	t.Helper()
	end := start().Add((scrapes - 1) * interval)
	run, err := engine.NewInstantQuery(t.Context(), db, nil, q.expression(), end)
	if err != nil {
		t.Fatalf("%s: %v", q.text, err)
	}
	defer run.Close()
	result := run.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %v", q.text, err)
	}
	return slices.Clone(vector)
}

// TestSharedGPU: each pod of a shared GPU has the ratio of the whole GPU in queries that divide its fields of memory. A pod that uses
// nothing has none; its used memory is 0.
func TestSharedGPU(t *testing.T) {
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	db := database(t, v1alpha1.AgentConfig{DCGMNames: true, DCGMCountersFile: counters})
	of := fmt.Sprintf(`{Hostname="node-a",gpu="%d"}`, shared)
	fields := strings.NewReplacer("USED", "DCGM_FI_DEV_FB_USED"+of, "FREE", "DCGM_FI_DEV_FB_FREE"+of,
		"RESERVED", "DCGM_FI_DEV_FB_RESERVED"+of, "TOTAL", "DCGM_FI_DEV_FB_TOTAL"+of)
	users := []string{"", "slice-1", "slice-2", "slice-3"}
	for text, test := range map[string]struct {
		want float64
		pods []string
	}{
		"USED / (USED + FREE)":            {78_501.0 / 80_995, users},
		"USED / (USED + FREE + RESERVED)": {78_501.0 / 81_559, users},
		"USED / TOTAL > 0.95":             {78_501.0 / 81_559, users},
		"avg(USED / TOTAL)":               {78_501.0 / 81_559, []string{""}},
		"1 - FREE / TOTAL":                {1 - 2494.0/81_559, users},
		"sum(TOTAL)":                      {81_559, []string{""}},
		"sum(USED)":                       {78_501, []string{""}},
		"USED == 0":                       {0, []string{"slice-4"}},
	} {
		t.Run(text, func(t *testing.T) {
			var pods []string
			for _, sample := range evaluate(t, engine, db, query{text: fields.Replace(text)}) {
				pods = append(pods, sample.Metric.Get("pod"))
				if !(math.Abs(sample.F-test.want) <= 0.001) { // NaN is not
					t.Errorf("%v of pod %q, want %v", sample.F, pods[len(pods)-1], test.want)
				}
			}
			slices.Sort(pods)
			if !slices.Equal(pods, test.pods) {
				t.Errorf("pods %q, want %q", pods, test.pods)
			}
		})
	}
}

// TestQueries evaluates the well-known queries, over the fields that dcgmNames gives, and with the fields of a list.
func TestQueries(t *testing.T) {
	all := queries(t)
	if len(all) != 48 {
		t.Errorf("%d queries, want 48", len(all))
	}
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 10_000_000)
	plain := database(t, v1alpha1.AgentConfig{DCGMNames: true})
	listed := database(t, v1alpha1.AgentConfig{DCGMNames: true, DCGMCountersFile: counters})
	document, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	data, byDefault := 0, 0
	for _, q := range all {
		t.Run(q.text, func(t *testing.T) {
			without, with := len(evaluate(t, engine, plain, q)), len(evaluate(t, engine, listed, q))
			switch {
			case with == 0 && q.reason == "":
				t.Error("no data, and no reason")
			case with > 0 && q.reason != "":
				t.Errorf("%d series in spite of the reason %q", with, q.reason)
			case without > with:
				t.Errorf("%d series, without a list %d", with, without)
			}
			if with > 0 {
				data++
			}
			if without > 0 {
				byDefault++
			}
			row := fmt.Sprintf("| %s | `%s` | %s |", q.source, strings.ReplaceAll(q.text, "|", `\|`), needs(without, with, q.reason))
			if !slices.Contains(strings.Split(string(document), "\n"), row) {
				t.Errorf("docs/metrics.md has not the row\n%s", row)
			}
		})
	}
	t.Logf("%d of %d queries have data, %d of them without a list", data, len(all), byDefault)
}

// needs says what a query needs.
func needs(without, with int, reason string) string {
	switch {
	case without > 0:
		return "`dcgmNames`"
	case with > 0:
		return "a list"
	}
	return "no data: " + reason
}
