// Package validate decides whether the GPUs of a container can be used, by the steps that a program takes before it computes: the
// device nodes, the library of CUDA, the driver's version, the devices that CUDA shows, and a sum of two vectors on each of them.
//
// It guarantees that the steps come in one order and end at the first that fails, with its code in docs/problems.md and evidence; that a
// step that hangs ends at its limit, with the call that did not return; and that the result fits into a termination message. It
// reads through the interfaces Files and Library, and writes nothing but a device node that it makes to see that it cannot be
// opened, and removes again.
//
// It imports neither the library of CUDA nor Kubernetes.
package validate
