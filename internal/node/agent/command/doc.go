// Package command is the command line of berth-agent: the agent itself, inspect, uninstall, probe, mps, validate, and the
// hidden commands that Berth's own programs start.
//
// It guarantees that each command uses the same configuration: the file, overridden by the flags. It converts flags to
// the dependencies of package agent, and does nothing that a command does not request: inspect and probe
// write nothing, and only uninstall removes anything. inspect scans once, and waits for the driver no longer than the
// configuration's scanDeadline. validate writes its result whichever step fails, before the command ends, and needs no agent, no API
// server and no configuration. uninstall with --on-host cleans a node through one mount of the node's root, without the mounts of an
// agent: a folder that is a mount point of the container cannot be removed, and the kubelet makes the folders of an agent's mounts again.
// It follows links of the host (/var/run) as the host does, never out of the mount, and removes only folders that are empty.
//
// It wires, so it may import every package of the node; only cmd/ and tests import it.
package command
