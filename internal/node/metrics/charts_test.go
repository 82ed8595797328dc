package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/internal/node/metrics"
)

// vocabulary has the labels of each metric, as the code writes them.
type vocabulary map[string]map[string]bool

// written collects the metrics that the code writes, on machines that together have every metric.
func written(t *testing.T) vocabulary {
	t.Helper()
	words := vocabulary{}
	page := metrics.NewPage(metrics.PageDeps{Own: prometheus.NewRegistry(), Now: moment})
	inputs := worlds()
	inputs["old"] = func(t testing.TB) metrics.Input { return observe(t, machine(t, "t4x4")) } // retires pages
	inputs["slices"] = func(t testing.TB) metrics.Input {
		m := machine(t, "h100x8")
		partition(t, m, 0, 2)
		return observe(t, m)
	}
	for _, make := range inputs {
		page.Render(make(t))
		for line := range strings.Lines(scrape(t, page)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			name, rest, _ := strings.Cut(line, "{")
			if name == line {
				name, _, _ = strings.Cut(line, " ")
				rest = ""
			}
			if words[name] == nil {
				words[name] = map[string]bool{}
			}
			for _, label := range regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)="`).FindAllStringSubmatch(rest, -1) {
				words[name][label[1]] = true
			}
		}
	}
	return words
}

// fromPrometheus are labels that a scrape adds.
func fromPrometheus() []string { return []string{"instance", "job"} }

// language has the functions and keywords of PromQL that the charts use; another one must be added here by hand.
func language() []string {
	return []string{
		"sum", "count", "max", "min", "avg", "by", "on", "and", "or", "unless", "offset", "bool", "increase", "rate",
		"avg_over_time", "max_over_time", "label_replace", "label_values",
	}
}

var (
	tokens   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[A-Za-z_:][A-Za-z0-9_:]*|\d+[smhd]\b|\d+(?:\.\d+)?|[{}(),]|[=!<>~+*/-]+|\s+|.`)
	wordly   = regexp.MustCompile(`^[A-Za-z_]`)
	duration = regexp.MustCompile(`^\[(\d+[smhd]|\$__rate_interval)\]$`)
)

// unknownNames returns the names in a query that the code never writes.
func (v vocabulary) unknownNames(query string) []string {
	var found []string
	complain := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	var list []string
	for _, token := range tokens.FindAllString(query, -1) {
		if strings.TrimSpace(token) != "" {
			list = append(list, token)
		}
	}
	var all []string // labels of the query's metrics
	for _, token := range list {
		for label := range v[token] {
			all = append(all, label)
		}
	}
	metric, inside, grouping, depth := "", false, false, 0
	for i, token := range list {
		next := ""
		if i+1 < len(list) {
			next = list[i+1]
		}
		switch {
		case strings.HasPrefix(token, "["):
			if !duration.MatchString(token) {
				complain("range %s", token)
			}
		case token == "{":
			inside, depth = true, depth+1
		case token == "}":
			inside, depth = false, depth-1
		case token == "(":
			depth++
			grouping = i > 0 && slices.Contains([]string{"by", "on"}, list[i-1])
		case token == ")":
			depth--
			grouping = false
		case !wordly.MatchString(token):
		case inside:
			if !v[metric][token] && !slices.Contains(fromPrometheus(), token) {
				complain("label %s of %s", token, metric)
			}
		case grouping, i > 1 && list[i-1] == "," && strings.Contains(query, "label_values("):
			if !slices.Contains(all, token) && !slices.Contains(fromPrometheus(), token) && !strings.Contains(query, `"`+token+`"`) {
				complain("label %s", token)
			}
		case v[token] != nil:
			metric = token
		case !slices.Contains(language(), token):
			complain("name %s (before %q)", token, next)
		}
	}
	if depth != 0 {
		complain("brackets that do not close")
	}
	return found
}

// legends returns the labels that a legend or an annotation shows.
var legends = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([A-Za-z_]+)\s*\}\}`)

func (v vocabulary) checkText(t *testing.T, where, query, text string) {
	t.Helper()
	for _, match := range legends.FindAllStringSubmatch(text, -1) {
		ok := slices.Contains(fromPrometheus(), match[1])
		for metric, known := range v {
			ok = ok || known[match[1]] && strings.Contains(query, metric)
		}
		if !ok {
			t.Errorf("%s: %q shows the label %s, which no metric of %q has", where, text, match[1], query)
		}
	}
}

func (v vocabulary) checkQuery(t *testing.T, where, query string) {
	t.Helper()
	for _, stranger := range v.unknownNames(query) {
		t.Errorf("%s: nothing produces %s in: %s", where, stranger, query)
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", "..", "..", "charts", "berth", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %v, %d files", pattern, err, len(found))
	}
	return found
}

// TestCharts checks that each query of a dashboard or an alert names metrics and labels that the code writes.
func TestCharts(t *testing.T) {
	words := written(t)
	t.Run("dashboards", func(t *testing.T) { checkDashboards(t, words) })
	t.Run("rules", func(t *testing.T) { checkRules(t, words) })
	t.Run("the check can fail", func(t *testing.T) { checkTheCheck(t, words) })
}

func checkDashboards(t *testing.T, words vocabulary) {
	for _, path := range files(t, "dashboards/*.json") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID        string
			Title      string
			Templating struct {
				List []struct{ Name, Type, Query string }
			}
			Panels []struct {
				ID      int
				Type    string
				Title   string
				Targets []struct{ Expr, LegendFormat string }
			}
		}
		if err := json.Unmarshal(content, &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if board.UID == "" || board.Title == "" || len(board.Panels) == 0 {
			t.Errorf("%s: no uid, title or panels", path)
		}
		for _, variable := range board.Templating.List {
			if variable.Type == "query" {
				words.checkQuery(t, path+" variable "+variable.Name, variable.Query)
			}
		}
		ids := map[int]bool{}
		for _, panel := range board.Panels {
			if ids[panel.ID] {
				t.Errorf("%s: two panels have id %d", path, panel.ID)
			}
			ids[panel.ID] = true
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("%s: panel %q shows nothing", path, panel.Title)
			}
			for _, target := range panel.Targets {
				words.checkQuery(t, path+" panel "+panel.Title, target.Expr)
				words.checkText(t, path+" panel "+panel.Title, target.Expr, target.LegendFormat)
			}
		}
	}
}

func checkRules(t *testing.T, words vocabulary) {
	for _, path := range files(t, "rules/*.yaml") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var rules struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		}
		if err := yaml.UnmarshalStrict(content, &rules); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		names := map[string]bool{}
		for _, group := range rules.Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" || names[rule.Alert] || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
					t.Errorf("%s: alert %q has no name of its own, severity or summary", path, rule.Alert)
				}
				names[rule.Alert] = true
				words.checkQuery(t, path+" alert "+rule.Alert, rule.Expr)
				for _, text := range rule.Annotations {
					words.checkText(t, path+" alert "+rule.Alert, rule.Expr, strings.ReplaceAll(text, "{{ $value }}", ""))
				}
			}
		}
		for _, want := range []string{"BerthGPULowUtilization", "BerthGPUXID", "BerthGPUUncorrectedMemoryErrors", "BerthGPUHot", "BerthGPUHeldButIdle", "BerthAgentStale"} {
			if !names[want] {
				t.Errorf("%s: no alert %s", path, want)
			}
		}
	}
}

func checkTheCheck(t *testing.T, words vocabulary) {
	for query, want := range map[string]int{
		`berth_gpu_temperature_celsius > 80`:                                                   0,
		`sum by (uuid) (rate(berth_gpu_energy_joules_total{index="0", instance=~"a.*"}[5m]))`:  0,
		`label_values(berth_gpu_info, node)`:                                                   0,
		`label_values(berth_gpu_info, rack)`:                                                   1,
		`berth_gpu_temperature_kelvin > 80`:                                                    1,
		`berth_gpu_temperature_celsius{uid="x"}`:                                               1,
		`sum by (pod) (berth_gpu_temperature_celsius)`:                                         1,
		`berth_gpu_healthy == 0 and on (uuid, shelf) berth_gpu_info`:                           1,
		`rate(berth_gpu_energy_joules_total[5x])`:                                              1,
		`frobnicate(berth_gpu_energy_joules_total)`:                                            1,
		`sum(berth_gpu_energy_joules_total`:                                                    1,
		`DCGM_FI_DEV_GPU_UTIL{gpu="0", pod="a"} * on (UUID) DCGM_FI_DEV_FB_USED{container=""}`: 0,
	} {
		if got := words.unknownNames(query); len(got) != want {
			t.Errorf("%s: found %q, want %d", query, got, want)
		}
	}
}
