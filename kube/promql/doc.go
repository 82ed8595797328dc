// Package promql has the well-known queries over dcgm-exporter's names, in queries.tsv, and a test that evaluates each of them with
// Prometheus' own engine over what the agent exposes of simulated machines.
//
// It guarantees that a query has data, or that the file says why not; and that docs/metrics.md says which queries need a list of fields.
// It is a module of its own, so that no program of Berth gets Prometheus. Nothing may import it.
package promql
