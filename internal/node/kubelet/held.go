package kubelet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// devicesEnv is the prefix of the variables that name the devices of a container.
const devicesEnv = "BERTH_DEVICES"

// grantDigits is the length of a grant's ID: 128 random bits.
const grantDigits = 32

// GrantID finds the ID of a grant in the source of a container's mount: a folder directly below dir. A grant is the
// read-only mount that each answer to Allocate has. The runtime writes the sources of all mounts into the OCI spec,
// where a pod's author can neither override one nor choose one beneath dir without a hostPath volume; and the ID is
// random.
func GrantID(source, dir string) (string, bool) {
	id, below := strings.CutPrefix(source, strings.TrimSuffix(dir, "/")+"/")
	if !below || len(id) != grantDigits || !isHex(id) {
		return "", false
	}
	return id, true
}

// maxKeys bounds the devices that one variable may name.
const maxKeys = 1024

// DevicesEnv returns the name of the variable in the response to Allocate for a resource; its value is formatKeys of
// the devices. Each resource has its own variable, because the kubelet keeps only one value per name when a container
// requests two resources.
//
// The variable is only for users and berth trace: the kubelet appends the pod's own variables after it, so no decision
// may depend on it. Decisions use the grant (see GrantID).
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

// Mark returns the variable that names the devices of a resource in a container's environment, with its value.
func Mark(resource string, keys []gpu.DeviceKey) (name, value string) {
	return DevicesEnv(resource), formatKeys(keys)
}

// formatKeys prints keys in order, comma between them; ParseKeys reads it.
func formatKeys(keys []gpu.DeviceKey) string {
	if len(keys) == 1 {
		return keys[0].String()
	}
	sorted := slices.SortedFunc(slices.Values(keys), gpu.CompareKeys)
	texts := make([]string, len(sorted))
	for i, key := range sorted {
		texts[i] = key.String()
	}
	return strings.Join(texts, ",")
}

// ParseKeys parses the value of a DevicesEnv variable: a list of GPU[/MIG][#replica], separated by commas.
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
	whole, mig, partitioned := strings.Cut(device, "/")
	key := gpu.DeviceKey{GPU: gpu.UUID(whole), MIG: gpu.UUID(mig)}
	number := 0
	if shared {
		var err error
		if number, err = strconv.Atoi(share); err != nil || number < 1 || strconv.Itoa(number) != share {
			return gpu.DeviceKey{}, fmt.Errorf("parse device %q: the replica must be a number from 1", text)
		}
	}
	key.Share = number
	if whole == "" || partitioned && mig == "" {
		return gpu.DeviceKey{}, fmt.Errorf("parse device %q: want GPU[/MIG][#replica]", text)
	}
	return key, nil
}

// Open returns the devices whose device nodes the container has, whatever the source, sorted by key: MIG devices, and
// GPUs of which it has no MIG device, because a container with a MIG device has the node of its GPU too.
func (c *Container) Open(snapshot *gpu.Snapshot) []gpu.DeviceKey {
	var keys []gpu.DeviceKey
	for i := range snapshot.GPUs {
		whole := &snapshot.GPUs[i]
		if !c.opens(snapshot, gpu.DeviceKey{GPU: whole.UUID}) {
			continue
		}
		before := len(keys)
		for j := range whole.MIG.Devices {
			if key := (gpu.DeviceKey{GPU: whole.UUID, MIG: whole.MIG.Devices[j].UUID}); c.opens(snapshot, key) {
				keys = append(keys, key)
			}
		}
		if len(keys) == before {
			keys = append(keys, gpu.DeviceKey{GPU: whole.UUID})
		}
	}
	slices.SortFunc(keys, gpu.CompareKeys)
	return keys
}

// opens compares device numbers, as the kernel does; the path of a node in a container has no meaning.
func (c *Container) opens(snapshot *gpu.Snapshot, key gpu.DeviceKey) bool {
	whole := snapshot.GPU(key.GPU)
	if whole == nil || len(whole.Nodes) == 0 {
		return false
	}
	needed := []gpu.DeviceNode{whole.Nodes[0]}
	if key.MIG != "" {
		parent, device := snapshot.Device(key.MIG)
		if parent != whole || device == nil {
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
