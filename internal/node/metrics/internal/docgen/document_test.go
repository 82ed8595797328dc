package main

import (
	"os"
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
