package config

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// ParseClaim reads the opaque configuration of a claim or class with the defaults. The error has each problem with its field, below the
// given name, in one line.
func ParseClaim(name string, data []byte) (*v1alpha1.GPUClaimConfig, error) {
	d := newDecoder(name)
	config := &v1alpha1.GPUClaimConfig{}
	document := d.parse(data)
	if d.checkClaimType(document); len(d.problems) == 0 {
		d.decode(document, config, nil)
	}
	if len(d.problems) == 0 {
		d.checkClaimSharing(config)
	}
	if len(d.problems) == 0 {
		return config, nil
	}
	texts := make([]string, len(d.problems))
	for i, problem := range d.problems {
		problem.Line = 0 // The API server keeps no lines.
		texts[i] = problem.String()
	}
	return nil, errors.New(strings.Join(texts, "; "))
}

// checkClaimType refuses the configuration of another driver and unknown kinds, before their fields would be reported one by one.
func (d *decoder) checkClaimType(document *yaml.Node) {
	if len(d.problems) > 0 {
		return
	}
	version, kind := topText(document, "apiVersion"), topText(document, "kind")
	const want = "apiVersion: " + v1alpha1.APIVersion + ", kind: " + v1alpha1.KindGPUClaimConfig
	group, _, _ := strings.Cut(version, "/")
	switch {
	case version == "":
		d.reject("apiVersion", "is missing", "write "+want)
	case group != v1alpha1.Group:
		d.reject("apiVersion", strconv.Quote(version)+" is the configuration of another driver", "write "+want+", or name that driver in opaque.driver")
	case version != v1alpha1.APIVersion:
		d.reject("apiVersion", strconv.Quote(version)+" is unknown", "write "+v1alpha1.APIVersion)
	case kind == "":
		d.reject("kind", "is missing", "write "+v1alpha1.KindGPUClaimConfig)
	case kind != v1alpha1.KindGPUClaimConfig && spelling.Nearest(kind, []string{v1alpha1.KindGPUClaimConfig}) != "":
		d.reject("kind", strconv.Quote(kind)+" is unknown", "did you mean "+v1alpha1.KindGPUClaimConfig+"?")
	case kind != v1alpha1.KindGPUClaimConfig:
		d.reject("kind", strconv.Quote(kind)+" is unknown", "write "+v1alpha1.KindGPUClaimConfig)
	}
}

// checkClaimSharing checks the settings, and fills in their defaults.
func (d *decoder) checkClaimSharing(config *v1alpha1.GPUClaimConfig) {
	if config.Sharing == nil {
		config.Sharing = &v1alpha1.ClaimSharing{Mode: v1alpha1.SharingTimeSlicing}
	}
	sharing := config.Sharing
	switch sharing.Mode {
	case "":
		d.reject("sharing.mode", "is missing", "write timeSlicing or mps")
	case v1alpha1.SharingMPS:
		d.checkClaimMPS(sharing)
		return
	default:
		oneOf(d, "sharing.mode", sharing.Mode, v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS)
	}
	if sharing.MPS != nil {
		d.reject("sharing.mps", "these limits need mode mps: time-slicing limits neither memory nor threads", "set mode: mps, or remove mps")
	}
	sharing.TimeSlice = v1alpha1.TimeSlice(pick(string(sharing.TimeSlice), string(v1alpha1.TimeSliceDefault)))
	oneOf(d, "sharing.timeSlice", sharing.TimeSlice, v1alpha1.TimeSliceDefault, v1alpha1.TimeSliceShort, v1alpha1.TimeSliceMedium, v1alpha1.TimeSliceLong)
}

// checkClaimMPS checks the limits of mode mps, and fills in their defaults.
func (d *decoder) checkClaimMPS(sharing *v1alpha1.ClaimSharing) {
	if sharing.TimeSlice != "" {
		d.reject("sharing.timeSlice", "a time slice has no meaning with mode mps", "remove timeSlice, or set mode: timeSlicing")
	}
	if sharing.MPS == nil {
		sharing.MPS = &v1alpha1.ClaimMPSLimits{}
	}
	limits := sharing.MPS
	d.checkMPSLimits("sharing.mps", gpu.MPSLimits(*limits), "write MiB, or remove it for no limit", "remove it for 100")
	limits.PinnedMemoryMiB, limits.ActiveThreadPercentage = cmp.Or(limits.PinnedMemoryMiB, -1), cmp.Or(limits.ActiveThreadPercentage, 100)
}

// checkMPSLimits refuses limits that no MPS daemon can enforce, those of a claim or of a sharing rule. The fixes say what to write instead.
func (d *decoder) checkMPSLimits(at string, limits gpu.MPSLimits, fixMemory, fixThreads string) {
	if memory := limits.PinnedMemoryMiB; memory < -1 || memory > gpu.MaxMPSMemoryMiB || memory == 0 && d.given(at+".pinnedMemoryMiB") {
		d.reject(at+".pinnedMemoryMiB", fmt.Sprintf("%d is not a limit", memory), fixMemory)
	}
	if percent := limits.ActiveThreadPercentage; percent < 0 || percent > 100 || percent == 0 && d.given(at+".activeThreadPercentage") {
		d.reject(at+".activeThreadPercentage", fmt.Sprintf("%d is not a percentage from 1 to 100", percent), fixThreads)
	}
}

// topText returns the text of a key at the top level of a document; empty when it has none.
func topText(document *yaml.Node, key string) string {
	if document == nil || document.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(document.Content); i += 2 {
		if document.Content[i].Value == key && document.Content[i+1].Kind == yaml.ScalarNode {
			return document.Content[i+1].Value
		}
	}
	return ""
}
