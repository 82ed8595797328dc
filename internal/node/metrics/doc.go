// Package metrics turns a sample of a node's GPUs, and what is known of their holders and their health, into
// what Prometheus and people read: a page in Berth's vocabulary (berth_gpu_*, base units), the same in the names,
// units and labels of dcgm-exporter's default counters, and the objects of berth top.
//
// It guarantees that
//   - a page is a pure function of its Input: the same input gives the same bytes, in the same order;
//   - what the hardware did not tell has no series; it is never 0;
//   - a series of a whole card and one of a MIG device or a pod never have the same name in Berth's vocabulary,
//     so that a sum counts nothing twice;
//   - under dcgm-exporter's names what can be added adds up to the GPU, however many pods share it;
//   - a scrape waits for nothing: Page serves the bytes of the last rendering, with their age.
//
// It must not import the wiring rooms or a vendor's adapter.
package metrics

//go:generate go run ./internal/docgen
