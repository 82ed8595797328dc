// Package hostruntime finds where the programs of a node keep what Berth needs of them: the container runtime's socket, its state
// directory with the OCI specs of containers, its configuration files and its directories of CDI specs; the kubelet's directories; and the
// root of the driver's files. Distributions of Kubernetes differ in all of them.
//
// A place is taken from the command line of the running program, then from its configuration, then from its default. Without such a
// process, as in a copy of a node's files, the places of known distributions are tried by their sockets and then by their configuration.
//
// It guarantees that
//
//   - a process counts only if it is in the PID namespace of process 1, belongs to the owner of the host's root directory and is in no
//     cgroup of a pod; that of a container runtime also has to be in the mount namespace of process 1. So no container can pass for one;
//   - a runtime counts only if that owner also owns its socket, and of several runtimes the kubelet's is the one;
//   - no path leads out of the host's root, and all that is read is bounded;
//   - every result says where it is from, and what could not be read is a note, not an error;
//   - nothing is written, and nothing is sent but a request for the version, and only by [Version].
//
// It must not import a front end, the agent, hardware or an API client.
package hostruntime
