// Package health turns signals about a GPU into a verdict: what a scan found, what
// the hardware said between scans, and what was known before, into a gpu.Health.
//
// It guarantees that the same input gives the same verdict, that a verdict recovers
// by itself once there is proof that its causes are gone, and that a verdict never
// improves without such proof. It is pure: it must not import anything but the
// standard library and the other pure rooms, and it reads no clock.
package health
