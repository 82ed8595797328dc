package trace

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// ClaimRef identifies a ResourceClaim. A pod has only its name.
type ClaimRef struct {
	UID       string
	Namespace string
	Name      string
}

// String returns namespace/name, or the UID if the name is unknown.
func (r ClaimRef) String() string { return Ref(r).String() }

// ClaimFact is what one source says about a ResourceClaim.
type ClaimFact struct {
	Source Source
	Claim  ClaimRef
	// Devices are those of Berth's driver.
	Devices []ClaimDevice
	// Pods are those that use the claim.
	Pods []Ref
}

// ClaimDevice is a device of a claim.
type ClaimDevice struct {
	// Requests are those of the claim's requests that the device is for; empty when the source does not say.
	Requests []string
	// ID is the UUID of the device, or its name in a ResourceSlice.
	ID string
	// Admin is true for admin access, which does not hold the device.
	Admin    bool
	CDINames []string
}

// UseFact says that a container uses a claim.
type UseFact struct {
	Source    Source
	Pod       Ref
	Container string
	Claim     ClaimRef
	// Requests are those of the claim's requests that the container uses; nil for all.
	Requests []string
	// Resource is the extended resource for which the scheduler made the claim; empty for a claim that the pod names.
	Resource string
}

// Claim is a ResourceClaim with all that is known of it.
//
// +kubebuilder:object:generate=true
type Claim struct {
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	UID       string  `json:"uid,omitempty"`
	Sources   Sources `json:"sources"`
	// Pods are those that use it, ordered by namespace, name and UID.
	Pods []Ref `json:"pods,omitempty"`
	// Devices are those of Berth's driver that it has according to any source, ordered by index.
	Devices []ClaimedDevice `json:"devices,omitempty"`
}

// ref returns what identifies the claim.
func (c *Claim) ref() ClaimRef { return ClaimRef{UID: c.UID, Namespace: c.Namespace, Name: c.Name} }

// ClaimedDevice is a device of a claim.
//
// +kubebuilder:object:generate=true
type ClaimedDevice struct {
	UUID gpu.UUID `json:"uuid"`
	// Requests are those of the claim's requests that it is for.
	Requests []string `json:"requests,omitempty"`
	// AdminAccess is true for a device that the claim does not hold.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Sources say that the claim has it.
	Sources Sources `json:"sources"`
}

// claimState collects what the sources say about one claim.
type claimState struct {
	ref   ClaimRef
	facts []ClaimFact
	uses  []UseFact
}

// gatherClaims assigns every fact about claims to its claim. Of two claims of one name, a fact without a UID is about the one that
// the first source has.
func (j *joiner) gatherClaims() {
	j.claims = map[ClaimRef]*claimState{}
	names, uids := map[string]ClaimRef{}, map[ClaimRef]string{}
	for _, fact := range j.evidence.Claims {
		if fact.Claim.UID != "" && fact.Claim.Name != "" {
			addOnce(names, fact.Claim.UID, fact.Claim)
			addOnce(uids, ClaimRef{Namespace: fact.Claim.Namespace, Name: fact.Claim.Name}, fact.Claim.UID)
		}
	}
	state := func(ref ClaimRef) *claimState {
		ref.UID = cmp.Or(ref.UID, uids[ref])
		if named, ok := names[ref.UID]; ok {
			ref = named
		}
		if j.claims[ref] == nil {
			j.claims[ref] = &claimState{ref: ref}
		}
		return j.claims[ref]
	}
	for _, fact := range j.evidence.Claims {
		s := state(fact.Claim)
		s.facts = append(s.facts, fact)
		for _, ref := range fact.Pods {
			pod := j.podOf(ref)
			pod.facts = append(pod.facts, PodFact{Source: fact.Source, Ref: ref})
		}
	}
	for _, use := range j.evidence.Uses {
		s := state(use.Claim)
		s.uses = append(s.uses, use)
	}
}

// claimOrder returns the claims by namespace, name and UID.
func (j *joiner) claimOrder() []*claimState {
	return slices.SortedFunc(maps.Values(j.claims), func(a, b *claimState) int { return compareRefs(Ref(a.ref), Ref(b.ref)) })
}

// claim joins one claim.
func (j *joiner) claim(state *claimState) Claim {
	claim := Claim{Namespace: state.ref.Namespace, Name: state.ref.Name, UID: state.ref.UID}
	devices := map[gpu.UUID]*ClaimedDevice{}
	for _, fact := range state.facts {
		claim.Sources = append(claim.Sources, fact.Source)
		for _, ref := range fact.Pods {
			claim.Pods = append(claim.Pods, j.directory.resolve(ref))
		}
		for _, device := range fact.Devices {
			found, _ := j.catalogue.resolve("", device.ID)
			for _, id := range found {
				if devices[id] == nil {
					devices[id] = &ClaimedDevice{UUID: id}
				}
				d := devices[id]
				d.Requests = sortedTexts(append(d.Requests, device.Requests...))
				d.AdminAccess = d.AdminAccess || device.Admin
				d.Sources = sortSources(append(d.Sources, fact.Source))
			}
		}
	}
	for _, use := range state.uses {
		claim.Pods = append(claim.Pods, j.directory.resolve(use.Pod))
	}
	claim.Pods, claim.Sources = distinct(claim.Pods), sortSources(claim.Sources)
	for _, id := range j.catalogue.sorted(slices.Collect(maps.Keys(devices))) {
		claim.Devices = append(claim.Devices, *devices[id])
	}
	return claim
}

// usage is the use of one claim by one container.
type usage struct {
	claim *claimState
	// requests are those that the container uses; nil for all.
	requests []string
	resource string
	sources  []Source
	// assumed is true when no source names the containers that use the claim.
	assumed bool
}

// wants reports whether the container uses a device of the claim. A request of a prioritized list is allocated as REQUEST/SUBREQUEST.
func (u *usage) wants(device *ClaimDevice) bool {
	if u.requests == nil || len(device.Requests) == 0 {
		return true
	}
	return slices.ContainsFunc(device.Requests, func(request string) bool {
		parent, _, _ := strings.Cut(request, "/")
		return slices.Contains(u.requests, request) || slices.Contains(u.requests, parent)
	})
}

// text returns the requests that the container uses, with the extended resource for which they were made.
func (u *usage) text() string {
	text := "all requests"
	if len(u.requests) > 0 {
		text = "request " + strings.Join(u.requests, ", ")
	}
	if u.resource != "" {
		text += " for " + u.resource
	}
	return text
}

// usages returns the claims that a container uses. Where no source has the pod's specification, any container of a pod of the claim
// may be one that uses it.
func (j *joiner) usages(pod *podState, c *containerState) []usage {
	specified := slices.ContainsFunc(pod.facts, func(f PodFact) bool { return f.Source.Kind == PodSpec })
	is := func(ref Ref) bool { return j.directory.resolve(ref) == pod.ref }
	var all []usage
	for _, state := range j.claimOrder() {
		for _, use := range state.uses {
			if is(use.Pod) && use.Container == c.name {
				all = append(all, usage{claim: state, requests: use.Requests, resource: use.Resource, sources: []Source{use.Source}})
			}
		}
		if !specified && slices.ContainsFunc(state.facts, func(f ClaimFact) bool { return slices.ContainsFunc(f.Pods, is) }) {
			all = append(all, usage{claim: state, assumed: true})
		}
	}
	return all
}

// claimStatements returns one statement per source about the devices that a container has by its claims. With an assumed use it is
// about those devices that the container has.
func (j *joiner) claimStatements(pod *podState, c *containerState, uses []usage) []statement {
	has := map[gpu.UUID]bool{}
	for _, fact := range c.current() {
		for _, id := range j.catalogue.ofNodes(fact.Nodes).devices {
			has[id] = true
		}
	}
	var said []statement
	for _, use := range uses {
		for _, fact := range use.claim.facts {
			at := slices.IndexFunc(said, func(one statement) bool { return one.source == fact.Source })
			if at < 0 {
				at = len(said)
				said = append(said, statement{source: fact.Source, by: byClaim})
			}
			for i := range fact.Devices {
				if !use.wants(&fact.Devices[i]) {
					continue
				}
				found, known := j.catalogue.resolve("", fact.Devices[i].ID)
				said[at].vague = said[at].vague || !known
				if use.assumed {
					found = slices.DeleteFunc(slices.Clone(found), func(id gpu.UUID) bool { return !has[id] })
				}
				said[at].set = j.catalogue.sorted(append(said[at].set, found...))
				said[at].name(use.resource, found)
			}
		}
	}
	return append(said, j.impliedByClaims(pod, c, said)...)
}

// impliedByClaims returns "nothing" for the sources that were read completely, would have to list a claim to which the API gives
// devices of a running container, and do not.
func (j *joiner) impliedByClaims(pod *podState, c *containerState, said []statement) []statement {
	allocated := slices.ContainsFunc(said, func(s statement) bool { return s.source.Kind == ResourceClaim && len(s.set) > 0 })
	if !allocated || pod.done() || !c.live() {
		return nil
	}
	var silent []statement
	for _, source := range j.evidence.Read {
		must := false
		switch source.Kind {
		case ClaimRecord, Ledger:
			must = j.isLocal(pod)
		case GPUNode:
			must = pod.isOn(gpuNodeHost(source)) && !j.withheld(source)
		}
		if must && !slices.ContainsFunc(said, func(s statement) bool { return s.source == source }) {
			silent = append(silent, statement{source: source, by: byClaim})
		}
	}
	return silent
}

// compareSides compares the statements about a container with claims: those about claims and those about the device plugin, each with
// what the container has. A device that the container has and neither gave it counts on one side.
func (j *joiner) compareSides(pod *podState, c *containerState, uses []usage, said []statement) {
	of := func(by side) (list []statement, devices map[gpu.UUID]bool) {
		devices = map[gpu.UUID]bool{}
		for _, one := range said {
			if one.by == by {
				list = append(list, one)
				for _, id := range one.set {
					devices[id] = true
				}
			}
		}
		return list, devices
	}
	without := func(list []statement, drop func(gpu.UUID) bool) []statement {
		list = slices.Clone(list)
		for i := range list {
			list[i].set = slices.DeleteFunc(slices.Clone(list[i].set), drop)
		}
		return list
	}
	claims, claimed := of(byClaim)
	plugin, _ := of(byPlugin)
	has, _ := of(byContainer)
	for i := range claims {
		if kind := claims[i].source.Kind; kind == Ledger || kind == GPUNode {
			claims[i].set = j.catalogue.sorted(append(slices.Clone(claims[i].set), j.withAdmin(uses)...))
		}
	}
	if len(plugin) == 0 {
		j.compareStatements(pod, c, append(claims, has...))
		return
	}
	j.compareStatements(pod, c, append(claims, without(has, func(id gpu.UUID) bool { return !claimed[id] })...))
	j.compareStatements(pod, c, append(plugin, without(has, func(id gpu.UUID) bool { return claimed[id] })...))
}

// withAdmin returns the devices that a container has by admin access, which no ledger has.
func (j *joiner) withAdmin(uses []usage) []gpu.UUID {
	var devices []gpu.UUID
	for _, use := range uses {
		for _, fact := range use.claim.facts {
			for i := range fact.Devices {
				if device := &fact.Devices[i]; device.Admin && use.wants(device) {
					found, _ := j.catalogue.resolve("", device.ID)
					devices = append(devices, found...)
				}
			}
		}
	}
	return devices
}

// describeClaims adds the claims that a container uses, and to each of its devices those by which it has the device.
func (j *joiner) describeClaims(container *Container, uses []usage) {
	for _, use := range uses {
		name := use.claim.ref.String()
		if !use.assumed {
			for _, source := range use.sources {
				container.Claims = addFact(container.Claims, name, use.text(), source)
			}
		}
		for _, fact := range use.claim.facts {
			for i := range fact.Devices {
				if given := &fact.Devices[i]; use.wants(given) {
					j.describeClaimDevice(container, name, given, fact.Source)
				}
			}
		}
	}
}

func (j *joiner) describeClaimDevice(container *Container, claim string, given *ClaimDevice, source Source) {
	found, _ := j.catalogue.resolve("", given.ID)
	for i := range container.Devices {
		device := &container.Devices[i]
		if !slices.Contains(found, device.UUID) {
			continue
		}
		text := "request " + strings.Join(given.Requests, ", ")
		if len(given.Requests) == 0 {
			text = "request unknown"
		}
		if given.Admin {
			text += " (admin access)"
		}
		device.Claims = addFact(device.Claims, claim, text, source)
		device.AdminAccess = device.AdminAccess || given.Admin
		for _, name := range given.CDINames {
			container.CDINames = addFact(container.CDINames, "", name, source)
			for _, spec := range j.catalogue.cdi[name] {
				container.CDINames = addFact(container.CDINames, "", name, spec.Source)
			}
		}
	}
}

// sharesClaim reports whether two containers have a device by the same claim.
func sharesClaim(a, b []Fact) bool {
	return slices.ContainsFunc(a, func(one Fact) bool {
		return slices.ContainsFunc(b, func(other Fact) bool { return one.Name == other.Name })
	})
}
