package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const nvidiaDomain = "nvidia.com/"

// translation turns the resources and the sharing of NVIDIA's file into rules. NVIDIA's file first names devices and
// then shares a name; in Berth's the first rule that selects a device decides both. So each naming becomes the rules of
// the entries that share its name, followed by a rule that names the remaining devices.
type translation struct {
	*decoder
	file   *nvidiaFile
	config *v1alpha1.AgentConfig
	// gpus and migs are the namings in the order of the file.
	gpus []naming
	migs []naming
	// entries are the valid entries of the sharing block in mode.
	entries []entry
	mode    v1alpha1.SharingMode
	block   *nvidiaMode
}

// naming gives a name to devices of a pattern.
type naming struct {
	// pattern is empty for all devices that no other naming selects.
	pattern string
	name    string
	// at is the position in the file; empty for the default.
	at string
}

// entry is one of sharing's resources.
type entry struct {
	*nvidiaShared
	name   string
	rename string
	at     string
	// named is set when a naming has the name; gpus and migs when a rule for such devices was made from it.
	named bool
	gpus  bool
	migs  bool
}

func (t *translation) run() {
	t.gpus = append(t.namings("resources.gpus", t.file.Resources.GPUs), naming{name: defaultResourceName})
	t.migs = t.namings("resources.mig", t.file.Resources.MIG)
	for i, m := range t.migs {
		t.checkProfilePattern(fmt.Sprintf("resources.mig[%d].pattern", i), m.pattern)
	}
	switch t.config.MIGStrategy {
	case v1alpha1.MIGStrategySingle:
		t.migs = append(t.migs, naming{name: defaultResourceName})
	case v1alpha1.MIGStrategyNone:
		if len(t.migs) > 0 {
			t.note("resources.mig", "has no effect: migStrategy none advertises no MIG devices", "set migStrategy: mixed")
		}
		t.migs = nil
	}
	t.gpus, t.migs = t.reachable(t.gpus), t.reachable(t.migs)
	t.readSharing()
	for _, n := range t.gpus {
		t.gpuRules(n)
	}
	for _, n := range t.migs {
		t.migRules(n)
	}
	if slices.ContainsFunc(slices.Concat(t.gpus, t.migs), func(n naming) bool { return n.name == "" }) {
		return // The meaning of an entry is unknown until the names are fixed.
	}
	for i := range t.entries {
		t.settle(&t.entries[i])
	}
}

// namings reads one list of resources.
func (t *translation) namings(at string, list []nvidiaResource) []naming {
	var out []naming
	for i, r := range list {
		field := fmt.Sprintf("%s[%d]", at, i)
		if r.Pattern == "" {
			t.reject(field+".pattern", "is missing", "write the models or profiles that the name is for; * stands for anything")
		}
		out = append(out, naming{pattern: r.Pattern, name: t.resource(field+".name", r.Name), at: field})
	}
	return out
}

// reachable leaves out namings whose devices an earlier one already selects.
func (t *translation) reachable(all []naming) []naming {
	var out []naming
	for _, n := range all {
		earlier := slices.IndexFunc(out, func(e naming) bool {
			return n.pattern != "" && matches(e.pattern,
				n.pattern) || e.pattern == "*"
		})
		switch {
		case earlier < 0:
			out = append(out, n)
		case n.at != "":
			t.reject(n.at, "nothing reaches this pattern: "+out[earlier].at+" matches all that it matches, and the first decides", "put the narrower one first, or remove one")
		}
	}
	return out
}

// resource adds the domain to a name. It reports an invalid name.
func (t *translation) resource(field, name string) string {
	full := nvidiaDomain + strings.TrimPrefix(name, nvidiaDomain)
	short := strings.TrimPrefix(full, nvidiaDomain)
	switch {
	case name == "":
		t.reject(field, "is missing", "write a resource name such as nvidia.com/gpu")
	case strings.Contains(short, "/"):
		t.reject(field, strconv.Quote(name)+" is of another domain than nvidia.com",
			"for that, write a file of Berth's own: kind AgentConfig")
	case len(full) > maxResourceName:
		t.reject(field, fmt.Sprintf("%q has %d characters, at most %d are allowed", full, len(full), maxResourceName), "shorten it")
	case len(validation.IsDNS1123Subdomain(short)) > 0:
		t.reject(field, strconv.Quote(name)+" is not a resource name", "write lower-case letters, digits, - and . after nvidia.com/")
	default:
		return full
	}
	return ""
}

// readSharing reads the sharing block and its valid entries.
func (t *translation) readSharing() {
	sharing, at := t.file.Sharing, "sharing.timeSlicing"
	t.mode, t.block = v1alpha1.SharingTimeSlicing, sharing.TimeSlicing
	if sharing.MPS != nil {
		if t.block != nil {
			t.reject("sharing.mps", "timeSlicing and mps exclude each other in this file",
				"remove one of them; to use both on one node, on different GPUs, write a file of Berth's own: kind AgentConfig")
			return
		}
		at, t.mode, t.block = "sharing.mps", v1alpha1.SharingMPS, sharing.MPS
		if t.config.MIGStrategy == v1alpha1.MIGStrategyMixed {
			t.reject(at, "mps is not possible with migStrategy mixed",
				"set migStrategy: none, or, for MPS and MIG on different GPUs, write a file of Berth's own: kind AgentConfig")
			return
		}
	}
	if t.block == nil {
		return
	}
	if len(t.block.Resources) == 0 {
		t.reject(at+".resources", "names no resource to share",
			"write at least one, such as {name: nvidia.com/gpu, replicas: 4}, or remove "+at)
	}
	for i := range t.block.Resources {
		shared, field := &t.block.Resources[i], fmt.Sprintf("%s.resources[%d]", at, i)
		before := len(t.problems)
		e := entry{nvidiaShared: shared, at: field, name: t.resource(field+".name", shared.Name)}
		t.checkReplicas(field+".replicas", t.mode, shared.Replicas)
		if shared.Rename != "" {
			e.rename = t.resource(field+".rename", shared.Rename)
		}
		if name := e.name + sharedSuffix; t.block.RenameByDefault && shared.Rename == "" && e.name != "" && len(name) > maxResourceName {
			t.reject(field+".name", fmt.Sprintf("renameByDefault makes it %q, which has %d characters, at most %d are allowed", name, len(name), maxResourceName), "shorten it, or give rename")
		}
		if len(t.problems) > before {
			continue
		}
		if shared.Devices.oldUUID {
			t.note(field+".devices", "MIG-GPU-… is the UUID of a MIG device in drivers before R470; later drivers do not use it", "write MIG-… as nvidia-smi -L prints it")
		}
		t.entries = append(t.entries, e)
	}
}

// entriesOf returns the entries that share the devices with a name.
func (t *translation) entriesOf(name string) []*entry {
	var out []*entry
	for i := range t.entries {
		if t.entries[i].name == name {
			out = append(out, &t.entries[i])
		}
	}
	return out
}

// countable refuses a count for a name that several namings give: each of them would become a rule with its own count.
func (t *translation) countable(e *entry, all []naming) bool {
	if e.Devices.count == 0 {
		return true
	}
	var same []string
	for _, n := range all {
		if n.name == e.name {
			same = append(same, pick(n.at, "the default"))
		}
	}
	if len(same) > 1 {
		t.reject(e.at+".devices", fmt.Sprintf("a number of devices cannot be selected across %s, which all give the name %s", strings.Join(same, " and "), e.name), "list the devices, or write all")
	}
	return len(same) == 1
}

// gpuRules adds the rules of GPUs with one name.
func (t *translation) gpuRules(n naming) {
	base := v1alpha1.GPURule{}
	if n.at != "" {
		base.ResourceName = n.name
	}
	if n.pattern != "" && n.pattern != "*" {
		base.Select.Model = []string{n.pattern}
	}
	for _, e := range t.entriesOf(n.name) {
		e.named = true
		if !e.Devices.ofGPUs() || !t.countable(e, t.gpus) {
			continue
		}
		e.gpus = true
		rule := base
		rule.Sharing = t.share(e)
		if e.Devices.listing {
			// A selector must match each of its lists, NVIDIA's list any of them.
			if rule.Select.Index = e.Devices.gpus; rule.Select.Index != nil {
				t.addGPU(rule, e.at)
			}
			rule.Select.Index = nil
			if rule.Select.UUID = e.Devices.gpuUUIDs; rule.Select.UUID != nil {
				rule.Sharing = t.share(e)
				t.addGPU(rule, e.at)
			}
			continue
		}
		rule.Select.Count = e.Devices.count
		t.addGPU(rule, e.at)
	}
	left := !slices.ContainsFunc(t.config.GPUs, func(r v1alpha1.GPURule) bool { return coversGPUs(&r.Select, &base.Select) })
	if n.at != "" && left {
		t.addGPU(base, n.at)
	}
}

func (t *translation) addGPU(rule v1alpha1.GPURule, at string) {
	t.cameFrom(fmt.Sprintf("gpus[%d]", len(t.config.GPUs)), at)
	t.config.GPUs = append(t.config.GPUs, rule)
}

// cameFrom records the origin of a rule; the keys of an entry are those of Berth's sharing.
func (t *translation) cameFrom(rule, at string) {
	t.origins[rule], t.origins[rule+".sharing"] = at, at
}

// migRules adds the rules of MIG devices with one name.
func (t *translation) migRules(n naming) {
	base := v1alpha1.MIGDeviceRule{}
	if n.at != "" {
		base.ResourceName = n.name
	}
	// Where the hardware does not meet single, MIG devices have their own names, which the entry does not use.
	base.Select.NamedAsGPU = n.at == "" && t.config.MIGStrategy == v1alpha1.MIGStrategySingle
	if n.pattern != "" && n.pattern != "*" {
		base.Select.Profile = []string{n.pattern}
	}
	for _, e := range t.entriesOf(n.name) {
		e.named = true
		switch {
		case !e.Devices.ofMIGs() || !t.countable(e, t.migs):
		case t.mode == v1alpha1.SharingTimeSlicing:
			t.migEntry(base, e)
		case !e.Devices.listing && !e.migs:
			e.migs = true
			t.note(e.at, "MIG devices stay unshared: MPS does not run on them", "use timeSlicing to share them too")
		}
	}
	left := !slices.ContainsFunc(t.config.MIGDevices,
		func(r v1alpha1.MIGDeviceRule) bool { return coversMIGDevices(&r.Select, &base.Select) })
	if n.at != "" && left {
		t.addMIG(base, n.at)
	}
}

// migEntry adds the rules of one entry for MIG devices.
func (t *translation) migEntry(rule v1alpha1.MIGDeviceRule, e *entry) {
	e.migs = true
	rule.Sharing = t.share(e)
	if e.Devices.listing {
		if rule.Select.Index = e.Devices.migs; rule.Select.Index != nil {
			t.addMIG(rule, e.at)
		}
		rule.Select.Index = nil
		if rule.Select.UUID = e.Devices.migUUIDs; rule.Select.UUID != nil {
			rule.Sharing = t.share(e)
			t.addMIG(rule, e.at)
		}
		return
	}
	rule.Select.Count = e.Devices.count
	t.addMIG(rule, e.at)
}

func (t *translation) addMIG(rule v1alpha1.MIGDeviceRule, at string) {
	t.cameFrom(fmt.Sprintf("migDevices[%d]", len(t.config.MIGDevices)), at)
	t.config.MIGDevices = append(t.config.MIGDevices, rule)
}

func (t *translation) share(e *entry) *v1alpha1.Sharing {
	return &v1alpha1.Sharing{
		Mode:                       t.mode,
		Replicas:                   e.Replicas,
		ResourceName:               e.rename,
		RenameByDefault:            t.block.RenameByDefault,
		FailRequestsGreaterThanOne: t.block.FailRequestsGreaterThanOne,
	}
}

// entryByProfile adds the rules of an entry for nvidia.com/mig-PROFILE, the name that migStrategy mixed gives where
// resources.mig gives none.
func (t *translation) entryByProfile(e *entry, resource string) {
	name, ok := profileOfResource(resource)
	taken := slices.IndexFunc(t.migs, func(n naming) bool { return n.pattern == "" || matches(n.pattern, name) })
	switch {
	case !ok:
		t.reject(e.at+".name", e.name+" does not match a MIG profile", profileForm+", with . for each +")
	case t.mode == v1alpha1.SharingMPS:
		t.reject(e.at+".name", "MPS does not run on MIG devices", "share them by timeSlicing")
	case t.config.MIGStrategy != v1alpha1.MIGStrategyMixed:
		t.note(e.at, fmt.Sprintf("has no effect: migStrategy %s does not advertise %s", t.config.MIGStrategy, e.name),
			"set migStrategy: mixed")
	case taken >= 0:
		t.reject(e.at+".name", fmt.Sprintf("nothing is advertised as %s: %s names these MIG devices %s", e.name,
			t.migs[taken].at, t.migs[taken].name), "write that name")
	case !e.Devices.ofMIGs():
		t.checkKinds(e)
	default:
		t.migEntry(v1alpha1.MIGDeviceRule{Select: v1alpha1.MIGDeviceSelector{Profile: []string{name}}}, e)
		t.checkKinds(e)
	}
}

// settle handles the entries whose name no naming has.
func (t *translation) settle(e *entry) {
	if e.named {
		t.checkKinds(e)
		return
	}
	if resource, ok := strings.CutPrefix(e.name, nvidiaDomain+"mig-"); ok {
		t.entryByProfile(e, resource)
		return
	}
	var known []string
	for _, n := range slices.Concat(t.gpus, t.migs) {
		known = append(known, n.name)
	}
	if slices.ContainsFunc(t.file.Resources.MIG,
		func(r nvidiaResource) bool { return nvidiaDomain+strings.TrimPrefix(r.Name, nvidiaDomain) == e.name }) {
		t.note(e.at, fmt.Sprintf("has no effect: migStrategy %s does not advertise %s", t.config.MIGStrategy, e.name),
			"set migStrategy: mixed")
		return
	}
	slices.Sort(known)
	t.reject(e.at+".name", "nothing is advertised as "+e.name,
		suggest("there are nvidia.com/mig-PROFILE and", e.name, slices.Compact(known)))
}

// checkKinds refuses a list that names devices of a kind that does not have the name.
func (t *translation) checkKinds(e *entry) {
	gpus, migs := len(e.Devices.gpus)+len(e.Devices.gpuUUIDs), len(e.Devices.migs)+len(e.Devices.migUUIDs)
	switch {
	case migs > 0 && t.mode == v1alpha1.SharingMPS:
		t.reject(e.at+".devices", "MPS does not run on MIG devices", "remove them from the list, or use timeSlicing")
	case gpus > 0 && !e.gpus:
		t.reject(e.at+".devices", "the list has whole GPUs, which are not advertised as "+e.name, "write MIG devices as \"0:1\" or by UUID")
	case migs > 0 && !e.migs:
		t.reject(e.at+".devices", fmt.Sprintf("the list has MIG devices, which migStrategy %s does not advertise as %s",
			t.config.MIGStrategy, e.name), "share them as nvidia.com/mig-PROFILE with migStrategy: mixed")
	}
}
