package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/dcgm"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/metrics"
)

const head = `<!-- Made by go generate ./internal/node/metrics; do not edit. -->
# Metrics

The agent serves Prometheus' text format at ` + "`/metrics`" + ` of its socket (` + "`" + `/run/berth/agent.sock` + "`" + `, for root on the node), and of the address ` + "`metricsListen`" + ` when it is set.
A value that the hardware does not report has no series; it is never 0. The agent's metrics about itself
(` + "`berth_device_plugin_*`, `berth_dra_*`, `berth_pods_refused_total`, `berth_holdings`, `berth_problem`, `berth_build_info`" + `) are described on the page.
`

// claims are the agent's own metrics about claims (internal/node/agent/metricsync).
const claims = `
## Claims

A node that allocates nothing through Dynamic Resource Allocation has none of these. The reasons are ` + "`held`" + ` (another holder has the device),
` + "`refused`" + ` (the allocation or the configuration of the claim cannot be served), ` + "`not_ready`" + ` (containers cannot use the device yet), ` + "`canceled`" + ` (the kubelet
has ended the call), ` + "`other_agent`" + ` (another agent of the node has the ledger) and ` + "`other`" + `.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
| ` + "`berth_dra_call_duration_seconds`" + ` | histogram | seconds | ` + "`operation`" + ` | How long the kubelet's calls for a claim took (prepare, unprepare). |
| ` + "`berth_dra_claims`" + ` | gauge | number |  | ResourceClaims that hold devices. |
| ` + "`berth_dra_devices_in_two_apis`" + ` | gauge | number |  | Published devices that the kubelet counts for a device plugin too, by GPU or resource name. |
| ` + "`berth_dra_errors_total`" + ` | counter | number | ` + "`operation`, `reason`" + ` | Calls for a claim that failed, by reason. |
| ` + "`berth_dra_publish_age_seconds`" + ` | gauge | seconds |  | Time since the API server was last seen to have the ResourceSlices. |
| ` + "`berth_dra_resource_slices`" + ` | gauge | number |  | ResourceSlices that the node publishes. |
`

const dcgmHead = `
## Under dcgm-exporter's names

With ` + "`dcgmNames: true`" + ` the page has the fields of dcgm-exporter's own lists; ` + "`dcgmCounters`" + ` and ` + "`dcgmCountersFile`" + ` add the fields of a list in
dcgm-exporter's form, with the type and the help of the list. The labels of a pod are present when one pod holds the device; ` + "`GPU_I_PROFILE` and `GPU_I_ID`" + ` are those of a
GPU instance. The label with the node's name is ` + "`Hostname`" + `, or the value of ` + "`dcgmHostnameLabel`" + `. All metrics have the labels
%s; the table has the other ones.
`

const listedHead = `
### Fields that a list adds

The agent reads a value marked with * only when a list names the field: no call is made for it otherwise. The GPU has to
support the call in the column *from*: a listed field that no GPU of the node has a value of is named as the problem ` + "`DCGM_FIELD_UNAVAILABLE`" + ` after the second measurement.

| field | type | unit | from | meaning |
|---|---|---|---|---|
`

const withoutHead = `
### Fields without a value

A list may name these and others that are in no table. The agent names each at its start, in its log and as the problem ` + "`DCGM_FIELD_UNAVAILABLE`" + `, and exports the rest.

| field | why it has no value |
|---|---|
`

const queriesHead = `
### Well-known queries

A test evaluates each with Prometheus' own engine over what the agent exposes of simulated machines (` + "`kube/promql`" + `). The last column says what the agent needs
for it to have data: ` + "`dcgmNames`" + `, or a list that names the fields.

| source | query | needs |
|---|---|---|
`

const tableHead = `
| metric | type | unit | labels | meaning |
|---|---|---|---|---|
`

// queriesFile has the queries, from internal/node/metrics.
const queriesFile = "../../../kube/promql/queries.tsv"

// dcgmField matches the name of a field in a query.
var dcgmField = regexp.MustCompile(`DCGM_[A-Z0-9_]+`)

// queryTable writes the rows of the queries: source, query, and the reason where it has no data, separated by tabs.
func queryTable(out *strings.Builder, queries string) {
	for line := range strings.Lines(queries) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(strings.TrimSpace(line), "\t")
		needs := "`dcgmNames`"
		for _, name := range dcgmField.FindAllString(parts[1], -1) {
			if !slices.ContainsFunc(dcgm.Defaults(), func(e dcgm.Export) bool { return e.Name == name }) {
				needs = "a list"
			}
		}
		if len(parts) > 2 {
			needs = "no data: " + parts[2]
		}
		fmt.Fprintf(out, "| %s | `%s` | %s |\n", parts[0], strings.ReplaceAll(parts[1], "|", `\|`), needs)
	}
}

// document returns the page.
func document(queries string) []byte {
	var out strings.Builder
	out.WriteString(head + "\n## Berth's names\n")
	table(&out, metrics.Catalogue())
	out.WriteString(claims)
	list := metrics.DCGMCatalogue(dcgm.Defaults())
	shared := list[0].Labels
	fmt.Fprintf(&out, dcgmHead, code(shared))
	for i := range list {
		list[i].Labels = slices.DeleteFunc(slices.Clone(list[i].Labels), func(l string) bool { return slices.Contains(shared, l) })
	}
	table(&out, list)
	out.WriteString(listedHead)
	for _, f := range dcgm.Fields() {
		if !f.Default && f.Reason == "" {
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s%s | %s |\n", f.Name, f.Type, unit(metrics.Metric{Name: f.Name, Kind: string(f.Type), Help: f.Help}), f.Source, mark(f), f.Help)
		}
	}
	out.WriteString(withoutHead)
	for _, f := range dcgm.Fields() {
		if f.Reason != "" {
			fmt.Fprintf(&out, "| `%s` | %s |\n", f.Name, f.Reason)
		}
	}
	for _, family := range dcgm.Families() {
		fmt.Fprintf(&out, "| other names that begin with `%s` | %s |\n", family.Prefix, family.Reason)
	}
	out.WriteString(queriesHead)
	queryTable(&out, queries)
	return []byte(out.String())
}

// mark returns a star for a field that costs calls of its own.
func mark(f dcgm.Field) string {
	if slices.ContainsFunc(f.Measures, gpu.Measure.Optional) {
		return " *"
	}
	return ""
}

func table(out *strings.Builder, list []metrics.Metric) {
	out.WriteString(tableHead)
	slices.SortFunc(list, func(a, b metrics.Metric) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range list {
		fmt.Fprintf(out, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Kind, unit(m), code(m.Labels), strings.ReplaceAll(m.Help, "|", `\|`))
	}
}

// code returns the words as code, separated by commas.
func code(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "`" + strings.Join(words, "`, `") + "`"
}

// unit follows from the end of a name, as Prometheus' conventions have it. Under dcgm-exporter's names it is in the meaning.
func unit(m metrics.Metric) string {
	name := strings.TrimSuffix(m.Name, "_total")
	units := []struct{ suffix, unit string }{
		{"_bytes_per_second", "bytes per second"}, {"_bytes", "bytes"}, {"_seconds", "seconds"}, {"_hertz", "hertz"}, {"_celsius", "°C"},
		{"_watts", "watts"}, {"_joules", "joules"}, {"_ratio", "0 to 1"},
	}
	for _, u := range units {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	switch _, after, named := strings.Cut(m.Help, "("); {
	case m.Kind == string(dcgm.Label):
		return "text"
	case strings.HasPrefix(m.Name, "DCGM_") && named:
		return strings.TrimSuffix(after, ").")
	case strings.HasPrefix(m.Help, "1"):
		return "0 or 1"
	}
	return "number"
}
