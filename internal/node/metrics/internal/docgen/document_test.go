package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShippedDocumentIsUpToDate(t *testing.T) {
	shipped, err := os.ReadFile("../../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	queries, err := os.ReadFile("../../../../../kube/promql/queries.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(document(string(queries))), string(shipped)); diff != "" {
		t.Errorf("run make generate: docs/metrics.md is stale (-want +shipped):\n%s", diff)
	}
}

// TestOtherMetrics compares the metrics that the tables have by hand with the programs that define them.
func TestOtherMetrics(t *testing.T) {
	const internal = "../../../../"
	found := 0
	for file, definition := range map[string]string{
		"node/agent/metricsync/own.go":           `describe\("(\w+)", "([^"]+)"(?:, ("[^)]*"))?\)`,
		"node/agent/metricsync/claims.go":        `describe\("(\w+)", "([^"]+)"(?:, ("[^)]*"))?\)`,
		"cluster/scheduler/placement/metrics.go": `Name: "berth_(\w+)",.*\s+Help: "([^"]+)"(?:,\s+\}, \[\]string\{("[^}]*")\})?`,
	} {
		source, err := os.ReadFile(internal + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(definition).FindAllStringSubmatch(string(source), -1) {
			found++
			name, help, labels := m[1], strings.TrimSuffix(m[2], "."), strings.ReplaceAll(m[3], `"`, "`")
			row := regexp.MustCompile("(?m)^\\| `berth_" + name + "` \\| \\w+ \\| [^|]+ \\| " + regexp.QuoteMeta(labels) + " \\| " + regexp.QuoteMeta(help))
			if !row.MatchString(own + claims + schedulers) {
				t.Errorf("%s defines berth_%s with the labels %s and the help %q, which no table has", file, name, labels, help)
			}
		}
	}
	if rows := strings.Count(own+claims+schedulers, "| `berth_"); found != rows {
		t.Errorf("%d metrics are defined, and the tables have %d", found, rows)
	}
}
