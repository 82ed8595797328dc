// Package mps supervises one nvidia-cuda-mps-control per GPU that is shared by MPS. The
// Supervisor runs as `berth-agent mps`, in a DaemonSet of its own, so that an upgrade of the agent is
// not the end of its children; the Client is the agent's side of the supervisor's socket.
//
// What it guarantees:
//   - What is wanted is on disk before it is acted on, and is the whole truth: a supervisor that starts
//     again, whenever the last one died, brings about the same daemons, the same limits, the same compute
//     modes and nothing else.
//   - A GPU has at most one daemon. One that a dead supervisor left is adopted when it is ours and
//     answers, and ended when it is ours and does not.
//   - No process is signalled that is not proven ours: by a mark in the environment that it was started with,
//     through a pidfd, so that a number that was given to another process hits nobody.
//   - The compute mode that a GPU had is in its journal before it is changed, and restored when its
//     daemon is no longer wanted.
//   - A daemon sees the one GPU, has a pipe directory, a log directory and a /dev/shm of its own, and is Ready
//     only once it has answered for the limits that were set: an answer that is missing, that is more than was set
//     beyond the answer's own rounding, or that has another percentage is a failure. A smaller one, one that cannot
//     be read and 0G are remarks, since NVIDIA's manual shows whole GiB, rounded down (3G after 3840M).
//     Status has both figures.
//   - A daemon that dies is started again, after 1 s, 2 s, ... up to a minute.
//
// It must not import a front end, the inventory, Kubernetes or a vendor: the compute mode is set through
// the interface ComputeModes. It is one of the two rooms that may start programs.
//
// # The end of a supervisor
//
// Killed, a supervisor leaves its daemons running, and the next one adopts them. In a container they die with
// it, and the next one starts them anew. Asked to end (SIGTERM, the end of Run's context) it
// quits them, restores the compute modes and removes their directories: the DaemonSet updates OnDelete, so
// that somebody who ends its pod means it. Clients have 10 s to end; the pod's terminationGracePeriodSeconds should be
// 60. What is wanted stays on disk for the next start.
//
// # Facts about nvidia-cuda-mps-control that shape it
//
//   - Commands go to the standard input of another run of the program, which finds the daemon by
//     CUDA_MPS_PIPE_DIRECTORY and exits with a status other than 0 when there is none.
//   - The defaults for thread percentage and pinned memory are for servers that are yet to start, and are lost
//     with the daemon. A server runs from its first client on; so that a change counts for the next
//     client and not for the next server, it is told to the running servers too. Clients that
//     run keep the limits that they started with. There is no command that takes a memory limit
//     back, so that needs a new daemon, as does another -multiuser-server; both wait until no client is left.
//   - A client may choose less than the server's limit (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
//     CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), never more. The limits count per client process, not per container.
//   - With -multiuser-server clients of all UIDs share one server. Without it, a client of a second
//     UID is not refused by NVIDIA: it waits, in cuInit, until the last client of the first UID has gone.
//   - CUDA_VISIBLE_DEVICES of the daemon renumbers the GPUs: its one GPU is device 0 in every command.
//   - Server and clients share memory in /dev/shm, so the daemon must have the same one as its clients'
//     containers: a tmpfs of half the machine's memory, mounted for the daemon in a mount namespace of its own.
//
// # Files below the root
//
//	control.sock        the supervisor's socket, 0600
//	lock                held by the supervisor that runs
//	wanted.json         what is wanted, in the form of internal/node/statefile
//	<UUID>/state.json   the journal of a GPU, in that form too: previous compute mode, process
//	<UUID>/pipe         CUDA_MPS_PIPE_DIRECTORY
//	<UUID>/log          CUDA_MPS_LOG_DIRECTORY: control.log, server.log, and daemon.log with the daemon's output
//	<UUID>/shm          /dev/shm of the daemon and its clients
//
// Of these two files a damaged one, and one of a newer version, is kept with .bak behind its name and reported in the log, the
// journal's also in the status. Without wanted.json the journals say what ran, and that goes on. When both are lost a daemon is left as it
// is, and its clients with it, until the agent says what it wants.
//
// In a container the root must be mounted with mountPropagation Bidirectional, so that the host (and through it the
// clients' containers) sees the tmpfs, and with hostPID, since the daemon tells its clients apart by PID.
package mps
