// Package mps supervises one nvidia-cuda-mps-control per GPU that is shared by MPS. The Supervisor runs as `berth-agent
// mps`, in a DaemonSet of its own, so that an upgrade of the agent does not end the daemons; the Client is the agent's
// side of the supervisor's socket.
//
// Guarantees:
//   - The wanted set is on disk before the supervisor acts on it, and is complete: a supervisor that restarts, at
//     whatever point the previous one ended, establishes the same daemons, limits and compute modes and nothing else.
//   - A GPU has at most one daemon. A daemon that an earlier supervisor left is adopted if it carries the mark and
//     responds, and ended if it carries the mark and does not respond.
//   - Only processes of this supervisor are signalled: they are identified by a mark in their initial environment and
//     signalled through a pidfd, so a reused PID cannot hit another process.
//   - The previous compute mode of a GPU is in its journal before it is changed, and is restored when the daemon is no
//     longer wanted.
//   - A daemon sees one GPU and has its own pipe directory, log directory and /dev/shm. It is Ready only after it has
//     confirmed the limits that were set: a missing answer, a memory limit above the one set (beyond rounding) or
//     another percentage is a failure. A smaller memory limit, one that cannot be parsed and 0G are remarks, because
//     NVIDIA's manual shows whole GiB, rounded down (3G after 3840M). Status has both figures.
//   - A daemon that ends by itself is restarted after 1 s, 2 s, ... up to one minute.
//
// It must not import a front end, the inventory, Kubernetes or a vendor: the compute mode is set through the interface
// ComputeModes. It is one of the two packages that may start programs.
//
// # Shutdown
//
// When a supervisor is killed, its daemons continue to run and the next supervisor adopts them; in a container they end
// with it, and the next supervisor starts them again. On SIGTERM (the end of Run's context) it quits the daemons,
// restores the compute modes and removes their directories: the DaemonSet has the update strategy OnDelete, so its pod
// is only ended on purpose. Clients have 10 s to end; the pod's terminationGracePeriodSeconds should be 60. The wanted
// set stays on disk for the next start.
//
// # Facts about nvidia-cuda-mps-control
//
//   - Commands go to the standard input of a second process of the same program, which finds the daemon by
//     CUDA_MPS_PIPE_DIRECTORY and exits with a status other than 0 when there is none.
//   - The defaults for thread percentage and pinned memory apply to servers that start later, and are lost with the
//     daemon. A server starts with its first client; for a change to apply to the next client, it is set on the running
//     servers too. Running clients keep the limits that they started with. No command removes a memory limit, so that
//     needs a new daemon, as does a change of -multiuser-server; both wait until no client is left.
//   - A client may choose less than the server's limit (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
//     CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), never more. The limits apply per client process, not per container.
//   - With -multiuser-server clients of all UIDs share one server. Without it, a client of a second
//     UID is not refused: it waits in cuInit until the last client of the first UID has ended.
//   - CUDA_VISIBLE_DEVICES of the daemon renumbers the GPUs: its one GPU is device 0 in every command.
//   - Server and clients share memory in /dev/shm, so the daemon must use the same one as its clients' containers: a
//     tmpfs of half the machine's memory, mounted for the daemon in a mount namespace of its own.
//
// # Files below the root
//
//	control.sock        the supervisor's socket, 0600
//	lock                held by the running supervisor
//	wanted.json         the wanted set, in the format of internal/node/statefile
//	<UUID>/state.json   the journal of a GPU, in the same format: previous compute mode, process
//	<UUID>/pipe         CUDA_MPS_PIPE_DIRECTORY
//	<UUID>/log          CUDA_MPS_LOG_DIRECTORY: control.log, server.log, and daemon.log with the daemon's output
//	<UUID>/shm          /dev/shm of the daemon and its clients
//
// A JSON file that is damaged or of a newer version is renamed to *.bak and reported in the log, a journal also in the
// status. Without wanted.json the wanted set is rebuilt from the journals. When both are lost, a daemon and its clients
// are left unchanged until the agent sends a wanted set.
//
// In a container the root must be mounted with mountPropagation Bidirectional, so that the host (and through it the
// clients' containers) sees the tmpfs, and with hostPID, because the daemon identifies its clients by PID.
package mps
