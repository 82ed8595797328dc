// Package dcgm knows the fields of NVIDIA's Data Center GPU Manager by name: what a field is measured from, in which unit, and why a
// field that only DCGM has cannot be given. It reads the lists of fields that dcgm-exporter takes.
//
// It guarantees that
//   - [Fields] has each field that the lists of dcgm-exporter name, active or commented out, with a value or with the reason why there
//     is none; the old name of a field in its 1.x-compatibility-metrics.csv is a [Mistake] with today's name as the fix;
//   - [Parse] accepts any input: what it cannot read is a [Mistake] with the number of the line and the fix, and the other lines count;
//   - the order of a result is that of the list.
//
// It must not import anything but the standard library and other packages of core.
package dcgm
