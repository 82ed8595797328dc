package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/gpu"
)

// devicesEnv is the beginning of the variables by which a container is known to
// have been given devices by Berth.
const devicesEnv = "BERTH_DEVICES"

// maxKeys bounds the devices that one variable may name.
const maxKeys = 1024

// DevicesEnv is the variable that the answer to Allocate has to carry for a
// resource, with FormatKeys of the devices as its value. Each resource has its
// own, because the kubelet keeps only one of two values of one name when a
// container asks for two resources.
//
// The variable is needed although the device nodes say which GPUs a container can
// open: a privileged container, or a monitor that was given all GPUs, can open them
// and holds none; and shares of a GPU have the same nodes.
func DevicesEnv(resource string) string {
	name := []byte(devicesEnv + "_" + resource)
	for i, c := range name {
		switch {
		case c >= 'a' && c <= 'z':
			name[i] = c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		default:
			name[i] = '_'
		}
	}
	return string(name)
}

// FormatKeys prints keys in order, comma between them; ParseKeys reads it.
func FormatKeys(keys []gpu.DeviceKey) string {
	sorted := slices.SortedFunc(slices.Values(keys), gpu.CompareKeys)
	texts := make([]string, len(sorted))
	for i, key := range sorted {
		texts[i] = key.String()
	}
	return strings.Join(texts, ",")
}

// ParseKeys reads the value of a DevicesEnv variable: GPU[/MIG][#share], comma
// between them.
func ParseKeys(text string) ([]gpu.DeviceKey, error) {
	if text == "" {
		return nil, nil
	}
	if strings.Count(text, ",") >= maxKeys {
		return nil, fmt.Errorf("parse devices: more than %d", maxKeys)
	}
	var keys []gpu.DeviceKey
	for part := range strings.SplitSeq(text, ",") {
		key, err := parseKey(part)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func parseKey(text string) (gpu.DeviceKey, error) {
	device, share, shared := strings.Cut(text, "#")
	card, mig, partitioned := strings.Cut(device, "/")
	key := gpu.DeviceKey{GPU: gpu.UUID(card), MIG: gpu.UUID(mig)}
	number := 0
	if shared {
		var err error
		if number, err = strconv.Atoi(share); err != nil || number < 1 || strconv.Itoa(number) != share {
			return gpu.DeviceKey{}, fmt.Errorf("parse device %q: the share has to be a number from 1", text)
		}
	}
	key.Share = number
	if card == "" || partitioned && mig == "" {
		return gpu.DeviceKey{}, fmt.Errorf("parse device %q: want GPU[/MIG][#share]", text)
	}
	return key, nil
}

// Held are the devices that a container was given by Berth: those that its
// variables name (see DevicesEnv) and whose device nodes it was really given. The
// first alone proves nothing, since a pod's author can set variables; the second
// cannot be had without a device plugin, unless the container is privileged.
//
// With trustEnv, NVIDIA_VISIBLE_DEVICES in the place of nodes is enough. That is for
// the device list strategies envvar and volume-mounts, where the nodes are made by a
// hook and are in no spec, and where this variable is what opens a GPU.
func (c *Container) Held(snapshot *gpu.Snapshot, trustEnv bool) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		if !strings.HasPrefix(name, devicesEnv) {
			continue
		}
		named, err := ParseKeys(c.Env[name])
		if err != nil {
			continue // somebody else wrote it: not a device of ours
		}
		for _, key := range named {
			if c.opens(snapshot, key) || trustEnv && c.visible(key) {
				keys = append(keys, key)
			}
		}
	}
	slices.SortFunc(keys, gpu.CompareKeys)
	return slices.Compact(keys)
}

// GPUs are the cards whose device nodes the container was given, in the snapshot's
// order, whoever gave them.
func (c *Container) GPUs(snapshot *gpu.Snapshot) []gpu.UUID {
	var cards []gpu.UUID
	for i := range snapshot.GPUs {
		if c.opens(snapshot, gpu.DeviceKey{GPU: snapshot.GPUs[i].UUID}) {
			cards = append(cards, snapshot.GPUs[i].UUID)
		}
	}
	return cards
}

// opens compares by device number, which is what the kernel goes by; a node's
// path in a container is of no meaning.
func (c *Container) opens(snapshot *gpu.Snapshot, key gpu.DeviceKey) bool {
	card := snapshot.GPU(key.GPU)
	if card == nil || len(card.Nodes) == 0 {
		return false
	}
	needed := []gpu.DeviceNode{card.Nodes[0]}
	if key.MIG != "" {
		parent, device := snapshot.Device(key.MIG)
		if parent != card || device == nil {
			return false
		}
		needed = append(needed, device.Nodes...)
	}
	for _, node := range needed {
		if !slices.ContainsFunc(c.Devices, func(d gpu.DeviceNode) bool { return d.Major == node.Major && d.Minor == node.Minor }) {
			return false
		}
	}
	return true
}

func (c *Container) visible(key gpu.DeviceKey) bool {
	for name := range strings.SplitSeq(c.Env["NVIDIA_VISIBLE_DEVICES"], ",") {
		if gpu.UUID(name) == key.Device() {
			return true
		}
	}
	// volume-mounts: the variable names a folder; the mounts are in no field here.
	return c.Env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
}
