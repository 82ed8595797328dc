package offer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
)

// The maximum number of clients of an MPS server, which depends on the compute capability.
const (
	// MaxMPSReplicas bounds the replicas of a GPU shared by MPS, of any compute capability.
	MaxMPSReplicas     = 48
	mpsClientsPreVolta = 16
	voltaMajor         = 7
)

// MaxReplicas bounds the replicas of a device: it keeps the list of a node within the kubelet's limit of 4 MiB per
// message.
const MaxReplicas = 1000

// slice is a MIG device with its GPU.
type slice struct {
	gpu  *namedGPU
	part *gpu.MIGDevice
	api  API
}

// resolver is one call of Resolve.
type resolver struct {
	settings Settings
	problems problems
	units    []Unit
	// refused are the devices that are not advertised because their settings cannot be met.
	refused []refusedDevice
	// shared are the names that devices of both APIs would have.
	shared []SharedName
}

// refusedDevice is a device that the node does not advertise because of the settings.
type refusedDevice struct {
	key      gpu.DeviceKey
	sentence string
}

// Resolve returns the wanted use of each device of the node, and the settings that cannot be met. Units are sorted by
// the index of the GPU, then of the MIG device.
//
// A device whose settings are refused is not advertised, and its problem says so. Advertising it in another way, such
// as unshared, could give it to pods that should not have it, possibly for weeks, and corrected settings would have to
// wait for their end.
func Resolve(snapshot *gpu.Snapshot, settings Settings) ([]Unit, []gpu.Cause) {
	r := resolve(snapshot, settings)
	return r.units, r.problems.causes()
}

// Refuse returns an error when the hardware cannot meet new settings: a device that is advertised now would not be
// advertised, because its new settings cannot be met. A device that the new settings exclude is no reason to refuse,
// nor is one that is not advertised now.
func Refuse(snapshot *gpu.Snapshot, inForce, next Settings) error {
	now := resolve(snapshot, inForce).units
	var sentences []string
	for _, refused := range resolve(snapshot, next).refused {
		if overlapsAny(refused.key, now) {
			sentences = append(sentences, refused.sentence)
		}
	}
	if len(sentences) == 0 {
		return nil
	}
	if others := len(sentences) - namedHolders; others > 0 {
		sentences = append(sentences[:namedHolders], fmt.Sprintf("and %d more", others))
	}
	return fmt.Errorf("this node's hardware does not support it: %s", strings.Join(sentences, "; "))
}

// resolve does the work of Resolve. The units are in the order of the GPUs.
func resolve(snapshot *gpu.Snapshot, settings Settings) *resolver {
	settings.ResourceName = cmp.Or(settings.ResourceName, DefaultResource)
	r := &resolver{settings: settings}
	gpus := listNamed(snapshot, func(kind, index string, id gpu.UUID) {
		sentence := fmt.Sprintf("it has the UUID %s of another device, so the two cannot be distinguished and this one is not offered; check the driver",
			id)
		if id == "" {
			sentence = "the driver gives it no UUID, so it cannot be named and is not offered; check the driver"
		}
		r.problems.add(UUIDUnusable, kind, index, sentence)
	})
	all := gpus
	gpus = slices.DeleteFunc(slices.Clone(all), func(c namedGPU) bool { return settings.OtherVendors[c.Vendor] != "" })
	for i := range all {
		if resource := settings.OtherVendors[all[i].Vendor]; resource != "" {
			r.units = append(r.units, Unit{Key: all[i].key(nil), Use: Use{Resource: resource}})
		}
	}
	decided := decideGPUs(gpus, settings.GPUs)
	offered, rules := r.static(gpus, decided)
	single := settings.MIGStrategy == MIGSingle && r.uniform(offered)
	var parts []slice
	for i := range offered {
		c := &offered[i]
		if c.MIG.Unknown {
			continue
		}
		if r.partitioned(c) {
			r.notWhole(c, rules[i])
			parts = append(parts, r.usable(c, r.api(rules[i]))...)
		} else {
			r.whole(c, rules[i])
		}
	}
	byPart := decide(len(parts), len(settings.MIGDevices),
		func(rule int) int { return settings.MIGDevices[rule].Select.Count },
		func(rule, i int) bool {
			s := &settings.MIGDevices[rule].Select
			return (single || !s.NamedAsGPU) && s.matches(parts[i].gpu, parts[i].part)
		})
	for i, one := range parts {
		r.part(one, byPart[i], single)
	}
	r.separateAPIs(all)
	r.compareKinds()
	gpuRuleProblems(&r.problems, gpus, settings.GPUs, decided)
	migRuleProblems(&r.problems, gpus, settings.MIGDevices, parts, byPart, settings.MIGStrategy, single)
	r.units = ordered(all, r.units)
	return r
}

// static resolves the GPUs with MIG devices on demand, and returns the others that are offered, with their rules.
func (r *resolver) static(gpus []namedGPU, decided []int) (offered []namedGPU, rules []int) {
	for i, rule := range decided {
		switch {
		case rule == noRule || !r.settings.GPUs[rule].Exclude && !r.settings.GPUs[rule].DynamicMIG:
			offered, rules = append(offered, gpus[i]), append(rules, rule)
		case !r.settings.GPUs[rule].Exclude && !gpus[i].MIG.Unknown:
			r.whole(&gpus[i], rule)
		}
	}
	return offered, rules
}

// ordered returns the units in the order of the GPUs.
func ordered(gpus []namedGPU, units []Unit) []Unit {
	var sorted []Unit
	for i := range gpus {
		sorted = append(sorted, gpus[i].unitsOf(units)...)
	}
	return sorted
}

// partitioned reports whether a GPU is advertised by its MIG devices.
func (r *resolver) partitioned(c *namedGPU) bool {
	return c.MIG.Enabled && r.settings.MIGStrategy != MIGNone
}

// changing reports whether a GPU is being partitioned, so that its present MIG devices are not meaningful.
func (r *resolver) changing(c *namedGPU) bool {
	_, changing := r.settings.Changing[c.UUID]
	return changing || c.MIG.Unknown
}

// uniform reports whether the GPUs meet MIGSingle. It adds a problem if only some do.
func (r *resolver) uniform(gpus []namedGPU) bool {
	var profiles, evidence []string
	enabled, fit := 0, true
	for i := range gpus {
		c := &gpus[i]
		if r.changing(c) {
			continue
		}
		switch had := profilesOf(c); {
		case !c.MIG.Enabled:
			fit = false
			evidence = append(evidence, "GPU "+c.index()+" has MIG disabled")
			continue
		case len(had) == 0:
			fit = false
			evidence = append(evidence, "GPU "+c.index()+" has no MIG device to offer")
		default:
			profiles = append(profiles, had...)
			evidence = append(evidence, "GPU "+c.index()+" has "+phrase.And(had))
		}
		enabled++
	}
	if enabled == 0 || fit && len(unique(profiles)) == 1 && profiles[0] != "" {
		return enabled > 0
	}
	r.problems.addGeneral(MIGNotSingle,
		fmt.Sprintf("migStrategy single needs MIG enabled on all GPUs, with MIG devices of one profile, but %s; until then each MIG device is offered by its profile as under migStrategy mixed, and GPUs without MIG as %s; partition all GPUs alike, exclude those that differ, or set migStrategy: mixed",
			phrase.And(evidence), r.settings.ResourceName))
	return false
}

// profilesOf returns the distinct profiles of a GPU's MIG devices, without partial ones.
func profilesOf(c *namedGPU) []string {
	var profiles []string
	for _, part := range c.parts {
		if !isPartial(part.Profile) {
			profiles = append(profiles, part.Profile)
		}
	}
	return unique(profiles)
}

// whole resolves a GPU that is advertised as a whole.
func (r *resolver) whole(c *namedGPU, at int) {
	if at == noRule {
		r.offer(c.key(nil), named{"GPU", c.index(), ""}, Use{Resource: r.settings.ResourceName}, refusal{})
		return
	}
	rule := &r.settings.GPUs[at]
	if rule.API == DRA {
		r.offer(c.key(nil), named{"GPU", c.index(), gpuRule(at)}, Use{API: DRA, DynamicMIG: rule.DynamicMIG, Resource: DefaultResource}, refusal{})
		return
	}
	use, refused := share(cmp.Or(rule.ResourceName, r.settings.ResourceName), &rule.Sharing)
	if refused.code == "" && use.Mode == MPS {
		refused = c.limit(&use, rule.Sharing.Replicas)
	}
	r.offer(c.key(nil), named{"GPU", c.index(), gpuRule(at)}, use, refused)
}

// notWhole reports a rule that shares the whole of a GPU that is advertised by its MIG devices. For time-slicing it is
// a problem only if the rule names the GPU; a rule for all GPUs means those without MIG.
func (r *resolver) notWhole(c *namedGPU, at int) {
	if at == noRule {
		return
	}
	rule := &r.settings.GPUs[at]
	switch {
	case rule.Sharing.Mode == MPS:
		r.problems.add(MPSOnMIG, "GPU", c.index(),
			fmt.Sprintf("MPS, which rule %s wants, is refused on a GPU with MIG enabled; its MIG devices are offered as migDevices says; disable MIG on the GPU, or take it out of the rule",
				gpuRule(at)))
	case rule.Sharing.Mode != Whole && rule.Select.named():
		r.problems.add(SharingNotApplied, "GPU", c.index(),
			fmt.Sprintf("rule %s shares the whole GPU, which has MIG enabled; its MIG devices are offered as migDevices says; share them there, or disable MIG on the GPU",
				gpuRule(at)))
	}
}

// usable returns the MIG devices of a GPU that can be advertised.
func (r *resolver) usable(c *namedGPU, api API) []slice {
	if len(c.parts) == 0 && !r.changing(c) {
		r.problems.add(MIGEmpty, "GPU", c.index(),
			"it has MIG enabled and no MIG devices, so nothing of it is offered; create some with a layout (node label nvidia.com/mig.config), or disable MIG with the layout all-disabled")
	}
	var usable []slice
	for _, part := range c.parts {
		if isPartial(part.Profile) {
			r.problems.add(MIGPartialCompute, "MIG device", c.partIndex(part),
				fmt.Sprintf("its compute instance (%s) is smaller than its GPU instance, whose memory it shares with others, so it is not offered; create a compute instance of the whole GPU instance",
					part.Profile))
			continue
		}
		usable = append(usable, slice{c, part, api})
	}
	return usable
}

// part resolves a MIG device.
func (r *resolver) part(one slice, at int, single bool) {
	device := named{"MIG device", one.gpu.partIndex(one.part), ""}
	var rule MIGRule
	if at != noRule {
		rule, device.rule = r.settings.MIGDevices[at], migRule(at)
	}
	if one.api == DRA && one.part.Profile != "" {
		r.offer(one.gpu.key(one.part), device, Use{API: DRA, Resource: MIGResource(one.part.Profile)}, refusal{})
		return
	}
	resource := r.settings.ResourceName
	if !single {
		resource = MIGResource(one.part.Profile)
	}
	if rule.ResourceName != "" {
		resource = rule.ResourceName
	} else if one.part.Profile == "" {
		r.problems.add(MIGProfileUnknown, device.kind, device.index,
			"the driver does not report its profile, so it has no name and is not offered; name it with a rule of migDevices that has a resourceName")
		return
	}
	use, refused := share(resource, &rule.Sharing)
	switch {
	case refused.code != "":
	case use.Mode == MPS:
		refused = refusal{MPSOnMIG, "MPS is refused on MIG devices; share it by timeSlicing, or create smaller MIG devices"}
	case use.TimeSlice != "":
		r.problems.add(TimeSliceOnMIG, device.kind, device.index,
			fmt.Sprintf("a time slice belongs to a whole GPU, so the device is shared with the driver's default and not with %s; remove timeSlice from rule %s",
				use.TimeSlice, device.rule))
		use.TimeSlice = ""
	}
	r.offer(one.gpu.key(one.part), device, use, refused)
}

// named is the name of a device in a problem, and the rule that decides about it, if any.
type named struct {
	kind  string
	index string
	rule  string
}

// refusal says why a device is not advertised and what to change; it is empty when it is advertised.
type refusal struct {
	code     string
	sentence string
}

func (r *resolver) offer(key gpu.DeviceKey, device named, use Use, refused refusal) {
	if refused.code == "" {
		if why := CheckResource(use.Resource); why != "" {
			refused = refusal{ResourceNameInvalid,
				fmt.Sprintf("%q cannot be the name of a resource: %s; set another resourceName", use.Resource, why)}
		} else if other := r.settings.VendorOf(use.Resource); other != r.settings.Vendor {
			refused = refusal{ResourceNameInvalid,
				fmt.Sprintf("%s is the resource of the GPUs of vendor %s, and a pod that requests it could get either; set another resourceName", use.Resource, other)}
		}
	}
	if refused.code == "" {
		r.units = append(r.units, Unit{Key: key, Use: use})
		return
	}
	sentence := "not offered"
	if device.rule != "" {
		sentence += " (rule " + device.rule + ")"
	}
	r.refused = append(r.refused, refusedDevice{key, fmt.Sprintf("%s %s would not be offered%s: %s", device.kind,
		device.index, strings.TrimPrefix(sentence, "not offered"), refused.sentence)})
	r.problems.add(refused.code, device.kind, device.index, sentence+": "+refused.sentence)
}

// share converts a sharing to the use of a device whose resource would be resource if it were not shared.
func share(resource string, s *Sharing) (Use, refusal) {
	if s.Mode == Whole {
		return Use{Resource: resource}, refusal{}
	}
	if s.ResourceName != "" {
		resource = s.ResourceName
	} else if s.Rename {
		resource += sharedSuffix
	}
	use := Use{Resource: resource, Mode: s.Mode, Replicas: s.Replicas, RefuseMany: s.RefuseMany}
	if s.Replicas < 1 {
		return use, refusal{SharingInvalid,
			fmt.Sprintf("a device cannot have %d replicas; set replicas to 1 or more, or remove the sharing", s.Replicas)}
	}
	if s.Replicas > MaxReplicas {
		return use, refusal{SharingInvalid,
			fmt.Sprintf("the kubelet would not accept the list of a node with %d replicas per device; set replicas to %d or less",
				s.Replicas, MaxReplicas)}
	}
	switch s.Mode {
	case TimeSlicing:
		use.TimeSlice = sliceName(s.TimeSlice)
		return use, refusal{}
	case MPS:
		if s.MPS.PinnedMemoryMiB < -1 || s.MPS.ActiveThreadPercentage < 0 || s.MPS.ActiveThreadPercentage > 100 {
			return use, refusal{SharingInvalid,
				fmt.Sprintf("limits of %d MiB and %d %% of the threads are invalid; set pinnedMemoryMiB to -1 or more, and activeThreadPercentage to 1 to 100",
					s.MPS.PinnedMemoryMiB, s.MPS.ActiveThreadPercentage)}
		}
		use.MPSLimits = s.MPS
		return use, refusal{}
	}
	return use, refusal{SharingInvalid, fmt.Sprintf("there is no sharing mode %q; set mode to %s or %s", s.Mode, TimeSlicing, MPS)}
}

// limit sets the limits of each MPS client, or returns why the GPU cannot be shared by MPS.
func (c *namedGPU) limit(use *Use, replicas int) refusal {
	clients := MaxMPSReplicas
	if c.ComputeCapability.Major < voltaMajor {
		clients = mpsClientsPreVolta
	}
	memory := int64(c.MemoryBytes>>20) / int64(replicas)
	switch {
	case c.MIG.Enabled:
		return refusal{MPSOnMIG, "MPS is refused on a GPU with MIG enabled; disable MIG on the GPU, or take it out of the rule"}
	case replicas > clients:
		return refusal{MPSTooManyReplicas,
			fmt.Sprintf("an MPS server of compute capability %v has at most %d clients, and the rule wants %d replicas; set replicas to %d or less",
				c.ComputeCapability, clients, replicas, clients)}
	case use.PinnedMemoryMiB == 0 && memory == 0:
		return refusal{MPSMemoryUnknown,
			fmt.Sprintf("its memory (%d MiB according to the driver) cannot be divided among %d replicas; set mps.pinnedMemoryMiB",
				c.MemoryBytes>>20, replicas)}
	}
	if use.PinnedMemoryMiB == 0 {
		use.PinnedMemoryMiB = memory
	}
	if use.ActiveThreadPercentage == 0 {
		use.ActiveThreadPercentage = 100 / replicas
	}
	return refusal{}
}

// sliceName returns the name of a time slice; the driver's default has an empty name.
func sliceName(name string) string {
	if name == "default" {
		return ""
	}
	return name
}

// api returns the API of a rule.
func (r *resolver) api(rule int) API {
	if rule == noRule {
		return DevicePlugin
	}
	return r.settings.GPUs[rule].API
}

// compareKinds adds a problem for each resource whose devices differ, since a pod cannot choose among them.
func (r *resolver) compareKinds() {
	var resources []string
	for _, unit := range r.units {
		resources = append(resources, unit.Use.Resource)
	}
	for _, resource := range unique(resources) {
		var kinds []string
		many, one := false, false
		for _, unit := range r.units {
			if unit.Use.Resource != resource || unit.Use.API != DevicePlugin {
				continue
			}
			if kind := kindOf(unit); !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
			many, one = many || !unit.Use.RefuseMany, one || unit.Use.RefuseMany
		}
		var sentence string
		if len(kinds) > 1 {
			sentence = fmt.Sprintf("resource %s has both %s, and a pod that requests it cannot choose which it gets", resource, phrase.And(kinds))
		}
		if many && one {
			if sentence == "" {
				sentence = fmt.Sprintf("only some devices of resource %s refuse a container that requests more than one", resource)
			}
			sentence += "; a container that requests more than one is refused, whichever it would get"
		}
		if sentence != "" {
			r.problems.addGeneral(MixedResource,
				sentence+"; give each kind its own name (resourceName, sharing.resourceName or sharing.renameByDefault)")
		}
	}
}

func kindOf(unit Unit) string {
	device := "GPUs"
	if unit.Key.MIG != "" {
		device = "MIG devices"
	}
	switch unit.Use.Mode {
	case TimeSlicing:
		return "time-sliced " + device
	case MPS:
		return device + " shared by MPS"
	}
	return "unshared " + device
}
