// Package gate keeps the gate of the node: it decides how far the node is on its way to accepting pods with GPUs, and keeps pods away until
// it is validated.
//
// It guarantees that the Node has the taint before a device is advertised for the first time ([Syncer.AwaitRegistration]); that a node
// whose GPUs were in use before does not get it; that what is validated, what has failed and what is tainted stays so for the next agent of
// the same boot; that what a validation pod says counts only for the key that it was made for, and that its text is bounded; that a file of
// settings ([SettingsFile]) which cannot be read, or is empty, leaves the last settings in force, is read when it has been equal for 200
// ms, and may have fields of later releases; and that a file for programs of NVIDIA's GPU operator ([BringFiles]) is there exactly while
// the node has reached its state, while a file of another program is neither changed nor removed.
//
// What wakes it: the hardware, the CDI spec, the use of the devices, the ledger, the pods of the node; every 2 s (500 ms while devices
// are about to be advertised) while the node is not validated, else every 30 s, since configuration files of the host and registrations
// by the kubelet come without a signal.
//
// What it writes: gate.json; the files for programs of NVIDIA's GPU operator, where they are wanted; through [Node] the taint and the
// condition; the problems of the sources "gate" and "gate-settings"; and [Syncer.Status].
//
// What it never waits for: the API server, the driver, the kubelet. AwaitRegistration does wait for the API server, before the start.
//
// It must not import the agent, a package below it, an adapter or a front end.
package gate
