package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/offer"
)

func (d *decoder) checkGPURules(c *v1alpha1.AgentConfig) {
	for i := range c.GPUs {
		rule, at := &c.GPUs[i], fmt.Sprintf("gpus[%d]", i)
		d.checkGPUSelector(at+".select", &rule.Select)
		if earlier := slices.IndexFunc(c.GPUs[:i], func(e v1alpha1.GPURule) bool {
			return coversGPUs(&e.Select,
				&rule.Select)
		}); earlier >= 0 {
			d.rejectUnreachable(at, fmt.Sprintf("gpus[%d]", earlier))
		}
		if rule.ResourceName != "" {
			d.checkResource(at+".resourceName", rule.ResourceName)
		}
		switch {
		case rule.Exclude && (rule.ResourceName != "" || rule.MIG != nil || rule.DynamicMIG || rule.Sharing != nil):
			d.reject(at+".exclude", "an excluded GPU has no resourceName, mig, dynamicMIG or sharing", "remove those, or exclude")
		case rule.MIG != nil && rule.Sharing != nil:
			d.reject(at+".sharing", "mig and sharing exclude each other: a GPU with MIG enabled is not advertised as a whole", "share its MIG devices by a rule of migDevices")
		}
		d.checkAllocation(at, rule, c)
		d.checkDynamicMIG(at, rule)
		if rule.MIG != nil {
			d.checkMIG(at+".mig", rule.MIG, c)
		}
		if s := rule.Sharing; s != nil {
			d.checkSharing(at+".sharing", s)
			d.checkTimeSlice(at+".sharing", s)
			d.checkSharedName(at+".sharing", s, pick(rule.ResourceName, c.ResourceName))
		}
	}
}

// checkAllocation refuses settings of the device plugin for GPUs that it does not allocate.
func (d *decoder) checkAllocation(at string, rule *v1alpha1.GPURule, c *v1alpha1.AgentConfig) {
	if rule.Allocation == nil {
		return
	}
	oneOf(d, at+".allocation.api", pick(string(rule.Allocation.API), string(v1alpha1.AllocationDevicePlugin)),
		string(v1alpha1.AllocationDevicePlugin), string(v1alpha1.AllocationDRA), string(v1alpha1.AllocationAuto))
	if rule.Allocation.API != v1alpha1.AllocationDRA && rule.Allocation.API != v1alpha1.AllocationAuto {
		return
	}
	switch {
	case rule.Exclude:
		d.reject(at+".allocation", "an excluded GPU is not allocated", "remove allocation, or exclude")
	case rule.ResourceName != "":
		d.reject(at+".resourceName", "with DRA the resource name belongs to the DeviceClass", "remove it, and set extendedResourceName in the DeviceClass")
	case rule.Sharing != nil:
		d.reject(at+".sharing", "with DRA the claim says how a device is shared", "remove sharing")
	case len(c.DeviceListStrategy) > 0 && !c.UsesCDI():
		d.reject(at+".allocation.api", "DRA injects devices through CDI, and deviceListStrategy does not use it", "add cdi-cri to deviceListStrategy")
	}
}

// checkDynamicMIG refuses settings that contradict MIG devices on demand.
func (d *decoder) checkDynamicMIG(at string, rule *v1alpha1.GPURule) {
	switch {
	case !rule.DynamicMIG || rule.Exclude:
	case rule.Allocation == nil || rule.Allocation.API != v1alpha1.AllocationDRA:
		d.reject(at+".dynamicMIG", "only claims create MIG devices on demand", "set allocation: {api: dra}, or remove dynamicMIG")
	case rule.MIG != nil:
		d.reject(at+".dynamicMIG", "a GPU has either a layout or MIG devices on demand", "remove mig, or dynamicMIG")
	}
}

func (d *decoder) checkMIGDeviceRules(c *v1alpha1.AgentConfig) {
	if c.MIGStrategy == v1alpha1.MIGStrategyNone && len(c.MIGDevices) > 0 {
		d.reject("migDevices", "migStrategy none advertises no MIG devices, so these rules would do nothing",
			"set migStrategy: mixed or single, or remove them")
	}
	for i := range c.MIGDevices {
		rule, at := &c.MIGDevices[i], fmt.Sprintf("migDevices[%d]", i)
		d.checkMIGDeviceSelector(at+".select", &rule.Select)
		if earlier := slices.IndexFunc(c.MIGDevices[:i],
			func(e v1alpha1.MIGDeviceRule) bool { return coversMIGDevices(&e.Select, &rule.Select) }); earlier >= 0 {
			d.rejectUnreachable(at, fmt.Sprintf("migDevices[%d]", earlier))
		}
		if rule.ResourceName != "" {
			d.checkResource(at+".resourceName", rule.ResourceName)
		}
		s := rule.Sharing
		if s == nil {
			continue
		}
		d.checkSharing(at+".sharing", s)
		if s.Mode == v1alpha1.SharingMPS {
			d.reject(at+".sharing.mode", "MPS does not run on MIG devices",
				"use timeSlicing, or mps in a rule of gpus for GPUs without MIG")
		}
		if s.TimeSlice != "" {
			d.reject(at+".sharing.timeSlice", "a time slice is a setting of a whole GPU, not of its MIG devices", "remove timeSlice")
		}
		base := rule.ResourceName
		if base == "" && c.MIGStrategy == v1alpha1.MIGStrategySingle {
			base = c.ResourceName
		}
		if base != "" {
			d.checkSharedName(at+".sharing", s, base)
		}
	}
}

func (d *decoder) rejectUnreachable(at, earlier string) {
	d.reject(at, "nothing reaches this rule: "+d.origin(earlier)+" selects all that it selects, and the first that matches decides", "put the narrower one first, or remove one")
}

func (d *decoder) checkGPUSelector(at string, s *v1alpha1.GPUSelector) {
	notEmpty(d, at+".index", s.Index)
	notEmpty(d, at+".uuid", s.UUID)
	notEmpty(d, at+".model", s.Model)
	d.checkIndices(at+".index", s.Index)
	for i, uuid := range s.UUID {
		if !gpuUUID.MatchString(uuid) {
			d.reject(fmt.Sprintf("%s.uuid[%d]", at, i), strconv.Quote(uuid)+" is not the UUID of a GPU", uuidForm)
		}
	}
	for i, model := range s.Model {
		if model == "" {
			d.reject(fmt.Sprintf("%s.model[%d]", at, i), "an empty name matches no GPU",
				"write it as nvidia-smi -L prints it; * stands for anything")
		}
	}
	d.checkCount(at+".count", s.Count)
}

func (d *decoder) checkMIGDeviceSelector(at string, s *v1alpha1.MIGDeviceSelector) {
	notEmpty(d, at+".gpu", s.GPU)
	notEmpty(d, at+".index", s.Index)
	notEmpty(d, at+".uuid", s.UUID)
	notEmpty(d, at+".profile", s.Profile)
	d.checkIndices(at+".gpu", s.GPU)
	for i, index := range s.Index {
		if !migIndex.MatchString(index) {
			d.reject(fmt.Sprintf("%s.index[%d]", at, i), strconv.Quote(index)+" is not the index of a MIG device",
				"write N:M, the GPU's index and the MIG device's, such as 0:1")
		}
	}
	for i, uuid := range s.UUID {
		if !migUUID.MatchString(uuid) && !oldUUID.MatchString(uuid) {
			d.reject(fmt.Sprintf("%s.uuid[%d]", at, i), strconv.Quote(uuid)+" is not the UUID of a MIG device", uuidForm)
		}
	}
	for i, name := range s.Profile {
		d.checkProfilePattern(fmt.Sprintf("%s.profile[%d]", at, i), name)
	}
	d.checkCount(at+".count", s.Count)
}

// notEmpty refuses an empty list, such as from a template, because it would select everything.
func notEmpty[T any](d *decoder, field string, list []T) {
	if list != nil && len(list) == 0 {
		d.reject(field, "an empty list selects nothing", "remove it to select all")
	}
}

func (d *decoder) checkIndices(field string, indices []int) {
	for i, index := range indices {
		if index < 0 {
			d.reject(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%d is not the index of a GPU", index),
				"GPUs are numbered from 0, see nvidia-smi -L")
		}
	}
}

func (d *decoder) checkCount(field string, count int) {
	if count < 0 {
		d.reject(field, fmt.Sprintf("%d is not a number of devices", count), "write 1 or more, or 0 for all")
	}
}

// checkMIG requires a layout that exists, or devices.
func (d *decoder) checkMIG(at string, m *v1alpha1.MIGSettings, c *v1alpha1.AgentConfig) {
	switch {
	case m.Layout != "" && len(m.Devices) > 0:
		d.reject(at, "layout and devices exclude each other", "keep one")
	case m.Layout == "" && len(m.Devices) == 0:
		d.reject(at, "has neither a layout nor devices",
			"write layout: all-enabled for a GPU with MIG and no devices, or remove mig to leave the GPU unchanged")
	case m.Layout != "" && !builtIn(m.Layout) && c.MIGConfigMap == "":
		if _, ok := c.MIGLayouts[m.Layout]; !ok {
			known := append(slices.Collect(maps.Keys(c.MIGLayouts)), "all-disabled", "all-enabled", "all-balanced", "all-PROFILE")
			d.reject(at+".layout", strconv.Quote(m.Layout)+" is not a layout", suggest("there are", m.Layout, known))
		}
	}
	d.checkProfiles(at+".devices", m.Devices)
}

// builtIn reports whether the name is that of a layout that is derived from the hardware.
func builtIn(layout string) bool {
	name, ok := strings.CutPrefix(layout, "all-")
	if _, isProfile := profileOfResource(name); ok && isProfile {
		return true
	}
	return ok && (name == "disabled" || name == "enabled" || name == "balanced")
}

func (d *decoder) checkProfiles(at string, devices map[string]int) {
	if len(devices) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(devices)), func(n int) bool { return n != 0 }) {
		d.reject(at, "every count is 0", "write at least one device, or {} for MIG enabled without devices")
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		field := at + "[" + name + "]"
		if !profile.MatchString(name) {
			d.reject(field, strconv.Quote(name)+" is not the name of a MIG profile", profileForm)
		}
		if devices[name] < 0 {
			d.reject(field, fmt.Sprintf("%d is not a number of MIG devices", devices[name]), "write 0 or more")
		}
	}
}

func (d *decoder) checkSharing(at string, s *v1alpha1.Sharing) {
	if s.Mode == "" {
		d.reject(at+".mode", "is missing", "write timeSlicing or mps")
	} else {
		oneOf(d, at+".mode", s.Mode, v1alpha1.SharingTimeSlicing, v1alpha1.SharingMPS)
	}
	d.checkReplicas(at+".replicas", s.Mode, s.Replicas)
	if s.ResourceName != "" {
		d.checkResource(at+".resourceName", s.ResourceName)
	}
	if s.MPS == nil {
		return
	}
	if s.Mode == v1alpha1.SharingTimeSlicing {
		d.reject(at+".mps", "these limits need mode mps: time-slicing limits neither memory nor threads", "set mode: mps, or remove mps")
	}
	d.checkMPSLimits(at+".mps", gpu.MPSLimits(*s.MPS),
		"write MiB, or -1 for no limit, or remove it for an equal part of the GPU's memory", "remove it for 100 divided by the replicas")
}

func (d *decoder) checkTimeSlice(at string, s *v1alpha1.Sharing) {
	switch {
	case s.TimeSlice == "":
	case s.Mode == v1alpha1.SharingMPS:
		d.reject(at+".timeSlice", "a time slice has no meaning with mode mps", "remove timeSlice, or set mode: timeSlicing")
	default:
		oneOf(d, at+".timeSlice", s.TimeSlice, v1alpha1.TimeSliceDefault, v1alpha1.TimeSliceShort,
			v1alpha1.TimeSliceMedium, v1alpha1.TimeSliceLong)
	}
}

func (d *decoder) checkReplicas(field string, mode v1alpha1.SharingMode, replicas int) {
	switch {
	case !d.given(field):
		d.reject(field, "is missing", "write how many containers may share a device")
	case replicas < 1:
		d.reject(field, fmt.Sprintf("%d is less than 1", replicas),
			"write how many containers may share a device; 1 means that it is not shared")
	case replicas > offer.MaxReplicas:
		d.reject(field, fmt.Sprintf("%d is more than %d", replicas, offer.MaxReplicas), "write how many containers may share a device")
	case mode == v1alpha1.SharingMPS && replicas > offer.MaxMPSReplicas:
		d.reject(field, fmt.Sprintf("%d is more than the %d clients that an MPS server can have", replicas,
			offer.MaxMPSReplicas), fmt.Sprintf("write %d or less, or share by timeSlicing", offer.MaxMPSReplicas))
	}
}

// checkSharedName checks the name that renameByDefault gives.
func (d *decoder) checkSharedName(at string, s *v1alpha1.Sharing, base string) {
	if name := base + sharedSuffix; s.RenameByDefault && s.ResourceName == "" && len(base) <= maxResourceName && len(name) > maxResourceName {
		d.reject(at+".renameByDefault", fmt.Sprintf("%q has %d characters, at most %d are allowed", name, len(name),
			maxResourceName), "give a shorter name")
	}
}

func pick(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func coversGPUs(wide, narrow *v1alpha1.GPUSelector) bool {
	return wide.Count == 0 && covers(wide.Index, narrow.Index) && covers(wide.UUID, narrow.UUID) && coversPatterns(wide.Model, narrow.Model)
}

func coversMIGDevices(wide, narrow *v1alpha1.MIGDeviceSelector) bool {
	return wide.Count == 0 && (!wide.NamedAsGPU || narrow.NamedAsGPU) && covers(wide.GPU, narrow.GPU) && covers(wide.Index, narrow.Index) &&
		covers(wide.UUID, narrow.UUID) && coversPatterns(wide.Profile, narrow.Profile)
}

// covers reports whether a list of a selector accepts everything that the other one accepts.
func covers[T comparable](wide, narrow []T) bool {
	if len(wide) == 0 || len(narrow) == 0 {
		return len(wide) == 0
	}
	return !slices.ContainsFunc(narrow, func(n T) bool { return !slices.Contains(wide, n) })
}

// coversPatterns is covers for patterns with *. A pattern that matches another pattern's text, including its stars,
// matches everything that the other one matches, because only a star matches a star.
func coversPatterns(wide, narrow []string) bool {
	if slices.Contains(wide, "*") {
		return true
	}
	if len(wide) == 0 || len(narrow) == 0 {
		return len(wide) == 0
	}
	return !slices.ContainsFunc(narrow, func(n string) bool {
		return !slices.ContainsFunc(wide, func(w string) bool { return matches(w, n) })
	})
}
