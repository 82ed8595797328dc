package offer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// replicaMark separates the UUID from the number of a replica in a device id.
const replicaMark = "::"

// DeviceID returns the kubelet's ID of a device: the UUID of the GPU or MIG device, and UUID::n for a replica, with n
// from 0, as NVIDIA's device plugin does (a key counts replicas from 1, since 0 means that the device is not shared).
func DeviceID(key gpu.DeviceKey) string {
	if key.Share > 0 {
		return string(key.Device()) + replicaMark + strconv.Itoa(key.Share-1)
	}
	return string(key.Device())
}

// ParseDeviceID splits a device ID into the UUID and the number of the replica as a key counts it (n+1, or 0 for a
// device that is not shared). It accepts exactly the output of DeviceID.
func ParseDeviceID(id string) (gpu.UUID, int, error) {
	device, replica, shared := strings.Cut(id, replicaMark)
	if device == "" {
		return "", 0, fmt.Errorf("parse device id %q: want a UUID, or UUID::n for a replica", id)
	}
	if !shared {
		return gpu.UUID(device), 0, nil
	}
	n, err := strconv.ParseUint(replica, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != replica || n == 1<<31-1 {
		return "", 0, fmt.Errorf("parse device id %q: the part after %q must be the number of a replica, from 0", id, replicaMark)
	}
	return gpu.UUID(device), int(n) + 1, nil
}
