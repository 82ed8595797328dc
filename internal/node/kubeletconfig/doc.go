// Package kubeletconfig reads how the running kubelet of this node is configured: the policy of its topology manager, which no file of the
// kubelet's state and no answer of its sockets has (kubelet 1.37).
//
// The kubelet is the process that listens on its device plugin socket: the kernel names it to a process that connects (SO_PEERCRED). So of
// several kubelets of a machine it is the one that this agent serves, and one in a container is found too. Its command line says which
// files it read; they are read in its root directory (/proc/PID/root). Flags count before drop-ins, drop-ins before the file, and the file
// before the default, as in cmd/kubelet/app/server.go.
//
// It guarantees that what is not certain is an error and never a default: a program that contains a kubelet and has flags of its own (k3s,
// kubelite), a file that was changed after the kubelet had started, a file that cannot be read, and a policy that does not exist. It reads
// no more than 4 MiB of a file, 1 MiB of a command line and 1000 entries of a directory, and writes nothing. It sends nothing to the
// kubelet, and needs no right in the API.
//
// It needs the PID namespace of the kubelet, or one above it, and the right to read the root directory of another user's process.
//
// [Text] is for programs that do not connect to the kubelet: it reads any text of the files as they are now.
//
// It must not import a front end, the agent, k8s.io/kubernetes or an API client.
package kubeletconfig
