package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Spec is a CDI spec as read from a file.
type Spec struct {
	// Path is the file; empty when the spec was not read from one.
	Path    string
	Version string
	Kind    string
	// Common are the edits of every container with at least one of the devices.
	Common Edits
	// Devices are in the order of the file.
	Devices []Device
}

// Device is one name that can be requested.
type Device struct {
	// Name is the unqualified name: a UUID, an index, or "all".
	Name string
	Edits
}

// Edits are what a container runtime adds to a container.
type Edits struct {
	Nodes  []gpu.DeviceNode
	Mounts []Mount
	// Env are NAME=value.
	Env   []string
	Hooks []Hook
}

// Mount is a bind mount of a host path.
type Mount struct {
	HostPath      string
	ContainerPath string
	Options       []string
}

// Hook is a program that the runtime runs at a stage of a container's life, such as
// "createContainer".
type Hook struct {
	Stage string
	Path  string
	Args  []string
	Env   []string
}

// ReadSpec reads Berth's spec from a CDI directory. The error is fs.ErrNotExist when there is none.
func ReadSpec(dir string) (*Spec, error) {
	data, err := readFile(dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, FileName)
	spec, err := ParseSpec(data)
	if err != nil {
		return nil, fmt.Errorf("read CDI spec %s: %w", file, err)
	}
	spec.Path = file
	return spec, nil
}

// ParseSpec reads a CDI spec in JSON. It ignores unknown fields, so that the spec of a newer Berth can be read.
func ParseSpec(data []byte) (*Spec, error) {
	if len(data) > maxSpecBytes {
		return nil, fmt.Errorf("parse CDI spec: larger than %d bytes", maxSpecBytes)
	}
	var raw specs.Spec
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("parse CDI spec: %w", err)
	}
	if raw.Version == "" || raw.Kind == "" {
		return nil, errors.New(`parse CDI spec: "cdiVersion" or "kind" is missing, so this is not a CDI spec`)
	}
	spec := &Spec{Version: raw.Version, Kind: raw.Kind, Common: editsOf(&raw.ContainerEdits)}
	seen := map[string]bool{}
	for i := range raw.Devices {
		name := raw.Devices[i].Name
		if name == "" || seen[name] {
			return nil, fmt.Errorf("parse CDI spec: device %d has no name, or the name %q of another", i, name)
		}
		seen[name] = true
		spec.Devices = append(spec.Devices, Device{name, editsOf(&raw.Devices[i].ContainerEdits)})
	}
	return spec, nil
}

// device returns a device by its qualified or unqualified name.
func (s *Spec) device(name string) (Device, bool) {
	name = strings.TrimPrefix(name, s.Kind+"=")
	for _, d := range s.Devices {
		if d.Name == name {
			return d, true
		}
	}
	return Device{}, false
}

func (s *Spec) source() string {
	if s.Path != "" {
		return s.Path
	}
	return "the CDI spec"
}

// Describe formats the spec for reading: the common part by its size, and each group of equivalent names with its
// device nodes, or with the mounts of a device without any.
func (s *Spec) Describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  CDI %s  %s\n", s.Kind, s.Version, s.source())
	fmt.Fprintf(&b, "every container: %s; %d files, %d hooks; %s\n", describeNodes(s.Common.Nodes),
		len(s.Common.Mounts), len(s.Common.Hooks), strings.Join(s.Common.Env, " "))
	var groups [][]string
	nodes := map[string]int{}
	var texts []string
	for _, d := range s.Devices {
		text := describeDevice(d)
		i, ok := nodes[text]
		if !ok || d.Name == All {
			i = len(groups)
			nodes[text] = i
			groups, texts = append(groups, nil), append(texts, text)
		}
		groups[i] = append(groups[i], d.Name)
	}
	for i, names := range groups {
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(names, " = "), texts[i])
	}
	return b.String()
}

func describeDevice(d Device) string {
	if len(d.Nodes) > 0 || len(d.Mounts) == 0 {
		return describeNodes(d.Nodes)
	}
	var parts []string
	for _, m := range d.Mounts {
		parts = append(parts, m.HostPath+" at "+m.ContainerPath)
	}
	return strings.Join(append(parts, d.Env...), ", ")
}

func describeNodes(nodes []gpu.DeviceNode) string {
	if len(nodes) == 0 {
		return "no device nodes"
	}
	var parts []string
	for _, n := range nodes {
		parts = append(parts, fmt.Sprintf("%s (%d:%d)", n.Path, n.Major, n.Minor))
	}
	return strings.Join(parts, ", ")
}

func editsOf(raw *specs.ContainerEdits) Edits {
	edits := Edits{Env: raw.Env}
	for _, n := range raw.DeviceNodes {
		if n != nil && inRange(n.Major) && inRange(n.Minor) {
			host := n.HostPath
			if host == "" {
				host = n.Path
			}
			edits.Nodes = append(edits.Nodes, gpu.DeviceNode{Path: n.Path, HostPath: host, Major: uint32(n.Major), Minor: uint32(n.Minor)})
		}
	}
	for _, m := range raw.Mounts {
		if m != nil {
			edits.Mounts = append(edits.Mounts, Mount{m.HostPath, m.ContainerPath, m.Options})
		}
	}
	for _, h := range raw.Hooks {
		if h != nil {
			edits.Hooks = append(edits.Hooks, Hook{h.HookName, h.Path, h.Args, h.Env})
		}
	}
	return edits
}

// inRange reports whether a device number is valid: the kernel has 12 and 20 bits.
func inRange(number int64) bool { return number >= 0 && number < 1<<20 }
