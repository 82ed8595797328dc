package gpu

import (
	"regexp"
	"strings"
)

// DriverFiles are what a vendor's driver has on a node, as plain data, for checks that ask no library.
type DriverFiles struct {
	// Proc is the driver's folder below /proc, with version, gpus and capabilities.
	Proc string
	// Libraries are the names of the driver's libraries, and LibraryFolders where distributions and driver images install them.
	Libraries      []string
	LibraryFolders []string
	// Node is how the name of a GPU's own device node begins below /dev; its minor follows.
	Node DriverNode
	// Nodes are the device nodes that all programs need.
	Nodes []DriverNode
	// Capability is how the name of the device node of a partition begins; its minor follows.
	Capability DriverNode
	// Runtime is the vendor's container runtime.
	Runtime ContainerRuntime
}

// DriverNode is a device node of a driver.
type DriverNode struct {
	// Name is below /dev.
	Name string
	// Drivers are the names in /proc/devices of which the last one there has the major number; Major counts where none is there.
	Drivers []string
	Major   uint32
	Minor   uint32
	// Optional nodes may be missing, but must not be wrong.
	Optional bool
}

// ContainerRuntime is a container runtime that gives a container the GPUs that its variables name.
type ContainerRuntime struct {
	// Program is part of the name of its program, and Prefix how the names of its handlers begin.
	Program string
	Prefix  string
	// Config is its configuration, and Refuses the setting that is false where variables of unprivileged containers do not count.
	Config  string
	Refuses string
	// DefaultCode is the problem code of a node on which it is the default runtime.
	DefaultCode string
}

// moduleVersion is a version of two or more numbers between spaces.
var moduleVersion = regexp.MustCompile(`(?:^|\s)(\d+(?:\.\d+)+)(?:\s|$)`)

// ModuleVersion returns the version of the kernel module from the text of the file version in the driver's folder below /proc, such as
// 580.95.05; empty for a text that has none in its first line. The lines after it are about other programs.
func ModuleVersion(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	match := moduleVersion.FindStringSubmatch(first)
	if match == nil {
		return ""
	}
	return match[1]
}
