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
A value that the hardware does not report has no series; it is never 0.
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

// own are the agent's metrics about itself (internal/node/agent/metricsync).
const own = `
## The agent

A holding's ` + "`kind`" + ` is ` + "`Pod`, `Claim`, `Maintenance`" + ` or ` + "`Orphan`" + ` ([glossary](glossary.md)); the codes of problems are in [problems.md](problems.md).

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
| ` + "`berth_build_info`" + ` | gauge | 0 or 1 | ` + "`version`, `commit`, `go_version`" + ` | 1; the labels say which build of the agent this is. |
| ` + "`berth_device_plugin_allocations_total`" + ` | counter | number | ` + "`resource`" + ` | Allocate calls that were answered. |
| ` + "`berth_device_plugin_devices`" + ` | gauge | number | ` + "`resource`" + ` | Devices advertised to the kubelet. |
| ` + "`berth_device_plugin_healthy_devices`" + ` | gauge | number | ` + "`resource`" + ` | Devices advertised to the kubelet as healthy. |
| ` + "`berth_device_plugin_refusals_total`" + ` | counter | number | ` + "`resource`" + ` | Calls that ended in an error. |
| ` + "`berth_device_plugin_registered`" + ` | gauge | 0 or 1 | ` + "`resource`" + ` | 1 while the kubelet keeps a stream open to this agent. |
| ` + "`berth_device_plugin_registrations_total`" + ` | counter | number | ` + "`resource`" + ` | Registrations that the kubelet took. |
| ` + "`berth_device_plugin_streams`" + ` | gauge | number | ` + "`resource`" + ` | Open ListAndWatch streams. |
| ` + "`berth_holdings`" + ` | gauge | number | ` + "`kind`" + ` | Devices held, by kind of holder. |
| ` + "`berth_pods_refused_total`" + ` | counter | number | ` + "`resource`" + ` | Pods that the kubelet refused for lack of devices after the scheduler had bound them, by a resource that they request. |
| ` + "`berth_problem`" + ` | gauge | 0 or 1 | ` + "`code`" + ` | 1 for each problem of the node that stands. |
`

// schedulers are the metrics of berth-scheduler (internal/cluster/scheduler/placement).
const schedulers = `
## The scheduler

` + "`berth-scheduler`" + ` serves these beside those of kube-scheduler, with TLS ([install.md](install.md#the-scheduler)). The operator has those of controller-runtime only.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
| ` + "`berth_scheduler_prediction_misses_total`" + ` | counter | number |  | Pods to which the kubelet has allocated other GPUs than the scheduler predicted. |
| ` + "`berth_scheduler_predictions_total`" + ` | counter | number | ` + "`result`" + ` | Predictions of the GPUs of a pod that were compared with what the kubelet has allocated, by result: hit, miss, or excluded where the kubelet's topology manager chooses. |
`

const dcgmHead = `
## Under dcgm-exporter's names

With ` + "`dcgmNames: true`" + ` the page has the fields of dcgm-exporter's own lists; ` + "`dcgmCounters`" + ` and ` + "`dcgmCountersFile`" + ` add the fields of a list in
dcgm-exporter's form, with the type and the help of the list. The labels of a pod are present when one pod holds the device; ` + "`GPU_I_PROFILE` and `GPU_I_ID`" + ` are those of a
GPU instance. The label with the node's name is ` + "`Hostname`" + `, or the value of ` + "`dcgmHostnameLabel`" + `. All metrics have the labels
%s; the table has the other ones.
`

const deviations = `
### Where a value is not dcgm-exporter's

- ` + "`DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL`" + ` is the sum of NVML's counters in KiB: ` + "`rate()`" + ` of it is the traffic in KiB/s, as the type ` + "`counter`" + ` in
  dcgm-exporter's lists says, and as dashboards have it. dcgm-exporter's own value is a rate of about MB/s under this type: DCGM
  divides the difference of two readings by the time and by 1000 (` + "`ReadAndCacheNvLinkBandwidth`" + ` in its ` + "`DcgmCacheManager.cpp`" + `;
  [dcgm-exporter issue 417](https://github.com/NVIDIA/dcgm-exporter/issues/417)).
- Of a GPU that several pods share, ` + "`DCGM_FI_DEV_FB_USED`" + ` has a series for each pod, with what its processes use, and one without labels of a pod for the
  rest. ` + "`DCGM_FI_DEV_FB_FREE`, `DCGM_FI_DEV_FB_RESERVED` and `DCGM_FI_DEV_FB_TOTAL`" + ` are divided in the same ratio: the series of a field add up to the GPU's
  value, and used/(used+free), used/(used+free+reserved) and used/total of each series are the GPU's, but for the rounding to MiB. A pod that uses nothing has
  ` + "`DCGM_FI_DEV_FB_USED`" + ` alone, as 0, and is not in the result of such a query; nor is a rest that uses nothing.
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
	out.WriteString(own + claims)
	list := metrics.DCGMCatalogue(dcgm.Defaults())
	shared := list[0].Labels
	fmt.Fprintf(&out, dcgmHead, code(shared))
	for i := range list {
		list[i].Labels = slices.DeleteFunc(slices.Clone(list[i].Labels), func(l string) bool { return slices.Contains(shared, l) })
	}
	table(&out, list)
	out.WriteString(deviations + listedHead)
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
	out.WriteString("| names of dcgm-exporter 1.x, such as `dcgm_gpu_temp` | it is an old name of a field; the problem `DCGM_COUNTERS_INVALID` has the name to write |\n")
	out.WriteString(queriesHead)
	queryTable(&out, queries)
	out.WriteString(schedulers)
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
