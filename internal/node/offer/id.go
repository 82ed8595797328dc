package offer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// replicaMark stands between the UUID and the number of a replica in a device id.
const replicaMark = "::"

// DeviceID is the kubelet's name for a piece of silicon: the UUID of the card or MIG
// device, and for a share UUID::n with n from 0, as the field writes it
// (a key counts its shares from 1, since 0 means unshared).
func DeviceID(key gpu.DeviceKey) string {
	if key.Share > 0 {
		return string(key.Device()) + replicaMark + strconv.Itoa(key.Share-1)
	}
	return string(key.Device())
}

// ParseDeviceID takes a device id apart: the UUID that it names, and the share in a
// key's counting (n+1, or 0 for a device that is not shared). It reads exactly what
// DeviceID writes.
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
