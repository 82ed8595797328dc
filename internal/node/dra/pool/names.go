package pool

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// DevicePrefix is how the names of devices and counter sets begin.
const DevicePrefix = "gpu-"

// uuidLength is the length of a UUID.
const uuidLength = 36

// gpuName returns the name of a whole GPU and of its counter set: the UUID in lower case, with "gpu-" before it where it is missing.
func gpuName(id gpu.UUID) string {
	name := strings.ToLower(string(id))
	if !strings.HasPrefix(name, DevicePrefix) {
		name = DevicePrefix + name
	}
	return name
}

// migName returns the name of a MIG device: that of its GPU, the profile and the first memory slice.
func migName(id gpu.UUID, placed mig.Placed) string {
	return fmt.Sprintf("%s-%s-%d", gpuName(id), label(placed.Profile), placed.Start)
}

// DeviceName returns the name of a device: that of a GPU or, with a profile, that of a MIG device on it.
func DeviceName(id gpu.UUID, placed mig.Placed) string {
	if placed.Profile == "" {
		return gpuName(id)
	}
	return migName(id, placed)
}

// IsDeviceName reports whether a name is in the form of DeviceName, for a GPU with a UUID as NVIDIA's driver writes it. Names of other
// drivers, such as gpu-0, are not.
func IsDeviceName(name string) bool {
	rest, ok := strings.CutPrefix(name, DevicePrefix)
	if !ok || len(rest) < uuidLength || len(rest) > uuidLength && rest[uuidLength] != '-' {
		return false
	}
	id := rest[:uuidLength]
	return strings.Trim(id, "-0123456789abcdef") == "" && strings.Count(id, "-") == 4 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-'
}

// label writes a profile as a DNS label: 1g.24gb+me.all is 1g24gb-meall, and 1g.24gb-me is 1g24gb-no-me, since a plus adds an
// attribute and a minus removes one.
func label(profile string) string {
	return strings.NewReplacer(".", "", "-", "-no-", "+", "-").Replace(profile)
}

// unnameable returns why a GPU cannot have a name, or an empty string.
func unnameable(id gpu.UUID) string {
	if id == "" {
		return "the driver reports no UUID, from which its name would follow"
	}
	if faults := validation.IsDNS1123Label(gpuName(id)); len(faults) > 0 {
		return fmt.Sprintf("its UUID cannot be the name of a device (%s): %s", gpuName(id), strings.Join(faults, "; "))
	}
	return ""
}
