// Package metrics renders a sample of a node's GPUs, with their holders and their health: a page for Prometheus in Berth's names
// (berth_gpu_*, base units), the same values in the names, units and labels of dcgm-exporter's fields, and the
// objects of berth top.
//
// It guarantees that
//   - a page is a pure function of its Input: the same input gives the same bytes, in the same order;
//   - a value that the hardware did not report has no series; it is never 0;
//   - series of a whole GPU, of a MIG device and of a pod have different names in Berth's vocabulary, so that a sum counts
//     nothing twice;
//   - under dcgm-exporter's names, series that can be added add up to the value of the GPU, however many pods share it;
//   - a scrape waits for nothing: Page serves the bytes of the last rendering, with their age;
//   - a list of fields ([ReadCounterList]) that cannot be read, or only in part, leaves the rest in force, and each line and each field
//     without a value is in a problem with the fix or the reason.
//
// It must not import the packages that wire the agent, or a vendor's adapter.
package metrics

//go:generate go run ./internal/docgen
