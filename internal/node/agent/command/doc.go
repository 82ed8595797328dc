// Package command is the command line of berth-agent: the agent itself, inspect, uninstall, probe, mps, validate, and the
// hidden commands that Berth's own programs start.
//
// It guarantees that each command uses the same configuration: the file, overridden by the flags. It converts flags to
// the dependencies of package agent and of inspect, and does nothing that a command does not request: inspect and probe
// write nothing, and only uninstall removes anything.
//
// It wires, so it may import every package of the node; only cmd/ and tests import it.
package command
