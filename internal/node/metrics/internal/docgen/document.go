package main

import (
	"fmt"
	"slices"
	"strings"

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

Only with ` + "`dcgmNames: true`" + `. The labels of a pod are present when one pod holds the device; ` + "`GPU_I_PROFILE` and `GPU_I_ID`" + ` are those of a
GPU instance. The label with the node's name is ` + "`Hostname`" + `, or the value of ` + "`dcgmHostnameLabel`" + `. All metrics have the labels
%s; the table has the other ones.
`

const tableHead = `
| metric | type | unit | labels | meaning |
|---|---|---|---|---|
`

// document returns the page.
func document() []byte {
	var out strings.Builder
	out.WriteString(head + "\n## Berth's names\n")
	table(&out, metrics.Catalogue())
	out.WriteString(claims)
	list := metrics.DCGMCatalogue()
	shared := list[0].Labels
	fmt.Fprintf(&out, dcgmHead, code(shared))
	for i := range list {
		list[i].Labels = slices.DeleteFunc(slices.Clone(list[i].Labels), func(l string) bool { return slices.Contains(shared, l) })
	}
	table(&out, list)
	return []byte(out.String())
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
	case strings.HasPrefix(m.Name, "DCGM_") && named:
		return strings.TrimSuffix(after, ").")
	case strings.HasPrefix(m.Help, "1"):
		return "0 or 1"
	}
	return "number"
}
