// Package health turns signals about a GPU into verdicts on it and on each of its MIG devices: what a scan
// found, what the hardware said between scans, and what was known before.
//
// It guarantees that
//   - the same input gives the same verdict, and the class of a fault, which decides the verdict, is data: a catalogue
//     that is built in, and overrides;
//   - a verdict recovers by itself once there is proof that its causes are gone, and never improves without such proof,
//     a restart of the process included, as long as its Record was kept;
//   - an error of one MIG instance concerns that one, unless it takes a drain or a reset of the GPU, or a reboot.
//
// It is pure: it must not import anything but the standard library and the other pure rooms, and it
// reads no clock.
package health
