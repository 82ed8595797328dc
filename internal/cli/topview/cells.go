package topview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// notGiven marks a user of a device that was allocated to others.
const notGiven = " (not given to it)"

func percent(ratio *float64) string {
	if ratio == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *ratio*100)
}

// number returns a value with its unit, if it has one.
func number(value *float64, unit string) string {
	if value == nil {
		return "-"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.0f %s", *value, unit), " ")
}

func power(s *v1alpha1.GPUSample) string {
	if s.PowerWatts == nil || s.PowerLimitWatts == nil {
		return number(s.PowerWatts, "W")
	}
	return fmt.Sprintf("%.0f/%.0f W", *s.PowerWatts, *s.PowerLimitWatts)
}

func clock(hertz *float64) string {
	if hertz == nil {
		return "-"
	}
	return number(new(*hertz/1e6), "MHz")
}

// memoryUse returns used and total memory, or the one that is known.
func memoryUse(use v1alpha1.GPUSampleUse) string {
	const gib = 1 << 30
	used, whole := "-", "-"
	if use.MemoryUsedBytes != nil {
		used = fmt.Sprintf("%.1f", *use.MemoryUsedBytes/gib)
	}
	if use.MemoryBytes != nil {
		whole = fmt.Sprintf("%.0f", *use.MemoryBytes/gib)
	}
	if used == "-" && whole == "-" {
		return "-"
	}
	return used + "/" + whole + " GiB"
}

// podUse names the pods of a device, without duplicates, with the fraction of the GPU's time that each used, if known:
// "-" for none, and "" for a GPU whose holders are listed with its MIG devices.
func podUse(pods []v1alpha1.PodSample, partitioned bool) string {
	var texts []string
	for i := range pods {
		text := podName(&pods[i])
		if pods[i].SMUtilization != nil {
			text += " " + percent(pods[i].SMUtilization)
		}
		if !pods[i].Held {
			text += notGiven
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 && !partitioned {
		return "-"
	}
	return strings.Join(texts, ", ")
}

func podName(pod *v1alpha1.PodSample) string {
	switch {
	case pod.Pod != "":
		return pod.Namespace + "/" + pod.Pod
	case pod.PodUID != "":
		return "pod " + pod.PodUID
	case pod.Held:
		return "held by no pod"
	}
	return "the host's own process"
}

// holds reports whether one of the pods holds the device.
func holds(pods []v1alpha1.PodSample) bool {
	return slices.ContainsFunc(pods, func(p v1alpha1.PodSample) bool { return p.Held })
}
