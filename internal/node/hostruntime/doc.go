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
// A [KubeletFollower] reads how the running kubelet is configured: the policy of its topology manager, which no file of the kubelet's state
// and no answer of its sockets has (kubelet 1.37). The kubelet is the process that listens on its device plugin socket: the kernel names it
// to a process that connects (SO_PEERCRED). So of several kubelets of a machine it is the one that this agent serves, and one in a
// container is found too. Its command line says which files it read; they are read in its root directory (/proc/PID/root). Flags count
// before drop-ins, drop-ins before the file, and the file before the default, as in cmd/kubelet/app/server.go. What is not certain is an
// error and never a default: a program that contains a kubelet and has flags of its own (k3s, kubelite), a file that was changed after the
// kubelet had started, a file that cannot be read, and a policy that does not exist. It reads no more than 4 MiB of a file, 1 MiB of a
// command line and 1000 entries of a directory, sends nothing to the kubelet, and needs the PID namespace of the kubelet, or one above it,
// and the right to read the root directory of another user's process. [Text] is for programs that do not connect to the kubelet.
//
// It must not import a front end, the agent, hardware or an API client.
package hostruntime
