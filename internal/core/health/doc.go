// Package health derives verdicts on a GPU and on each of its MIG devices from the results of scans, from the events that the
// hardware reports between scans, and from the record of what was found before.
//
// It guarantees that
//   - the same input gives the same verdict, and the class of a fault, which decides the verdict, is data: a built-in
//     catalogue, and overrides;
//   - a verdict recovers once there is proof that its causes are cleared, and never improves without such proof, also over
//     a restart of the process if its Record was kept;
//   - an error of one MIG instance concerns that instance alone, unless it takes a drain or a reset of the GPU, or a reboot.
//
// It must not import anything but the standard library and other packages of core, and it reads no clock.
package health
