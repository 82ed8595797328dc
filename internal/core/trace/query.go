package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/spelling"
)

// Query is the start of a trace: exactly one of a pod, a device, a claim and a process.
type Query struct {
	// Pod by UID, or by namespace and name.
	Pod Ref
	// Device is the UUID of a GPU or MIG device, or a unique prefix of one.
	Device gpu.UUID
	// Claim by namespace and name.
	Claim ClaimRef
	PID   int
}

// String describes the query.
func (q Query) String() string {
	switch {
	case q.PID > 0:
		return fmt.Sprintf("pid %d", q.PID)
	case q.Device != "":
		return string(q.Device)
	case q.Claim.Name != "":
		return "claim " + q.Claim.String()
	}
	return "pod " + q.Pod.String()
}

// NotFoundError means that no source has the subject of the query.
type NotFoundError struct {
	Query Query
	// Nearest are similar names that exist, best first.
	Nearest []string
	// Why gives details, if there are any.
	Why string
}

func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("find %s: no source knows it", e.Query)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// Select returns the part of the picture that a query leads to.
func (t *Trace) Select(query Query) (*Trace, error) {
	switch {
	case query.PID > 0:
		return t.selectProcess(query)
	case query.Device != "":
		return t.selectDevice(query)
	case query.Claim.Name != "":
		return t.selectClaim(query)
	}
	return t.selectPod(query, query.Pod)
}

func (t *Trace) selectPod(query Query, ref Ref) (*Trace, error) {
	var pods []Pod
	var names []string
	for _, pod := range t.Pods {
		if (ref.UID != "" && pod.UID == ref.UID) ||
			(ref.UID == "" && pod.Namespace == ref.Namespace && pod.Name == ref.Name) {
			pods = append(pods, pod)
		}
		names = append(names, pod.Ref().String())
	}
	if len(pods) == 0 {
		return nil, &NotFoundError{Query: query, Nearest: Nearest(ref.String(), names, 3)}
	}
	return t.part(query, withoutFormer(pods), nil), nil
}

// withoutFormer removes pods of which only a folder remains, unless all pods of that name are such: the kubelet removes
// the folders of deleted pods late.
func withoutFormer(pods []Pod) []Pod {
	present := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool {
		return len(p.Containers) == 0 && !slices.ContainsFunc(p.Sources, func(s Source) bool { return s.Kind != Directory })
	})
	if len(present) == 0 {
		return pods
	}
	return present
}

func (t *Trace) selectDevice(query Query) (*Trace, error) {
	var known []gpu.UUID
	for _, device := range t.Devices {
		known = append(known, device.UUID)
	}
	for _, pod := range t.Pods {
		for _, container := range pod.Containers {
			for _, device := range container.Devices {
				known = append(known, device.UUID)
			}
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	match, err := matchDevice(query, known)
	if err != nil {
		return nil, err
	}
	wanted := func(d Device) bool { return d.UUID == match || d.Parent == match }
	var pods []Pod
	for _, pod := range t.Pods {
		pod.Containers = slices.DeleteFunc(slices.Clone(pod.Containers),
			func(c Container) bool { return !slices.ContainsFunc(c.Devices, wanted) })
		for i := range pod.Containers {
			pod.Containers[i].Devices = slices.DeleteFunc(slices.Clone(pod.Containers[i].Devices),
				func(d Device) bool { return !wanted(d) })
		}
		if len(pod.Containers) > 0 {
			pods = append(pods, pod)
		}
	}
	var devices []Device
	for _, device := range t.Devices {
		if wanted(device) {
			devices = append(devices, device)
		}
	}
	query.Device = match
	return t.part(query, pods, devices), nil
}

// selectClaim returns the claims of a name, and the containers of their pods that use them; of a pod of which no container is known
// to use one, all.
func (t *Trace) selectClaim(query Query) (*Trace, error) {
	var names []string
	var claims []Claim
	for _, claim := range t.Claims {
		if claim.Namespace == query.Claim.Namespace && claim.Name == query.Claim.Name {
			claims = append(claims, claim)
		}
		names = append(names, claim.ref().String())
	}
	if len(claims) == 0 {
		return nil, &NotFoundError{Query: query, Nearest: Nearest(query.Claim.String(), names, 3)}
	}
	uses := func(facts []Fact) bool {
		return slices.ContainsFunc(facts, func(f Fact) bool { return f.Name == query.Claim.String() })
	}
	var pods []Pod
	for _, pod := range t.Pods {
		if !slices.ContainsFunc(claims, func(c Claim) bool { return slices.Contains(c.Pods, pod.Ref()) }) {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(pod.Containers), func(c Container) bool {
			return !uses(c.Claims) && !slices.ContainsFunc(c.Devices, func(d Device) bool { return uses(d.Claims) })
		})
		if len(own) > 0 {
			pod.Containers = own
		}
		pods = append(pods, pod)
	}
	found := t.part(query, pods, nil)
	found.Claims = claims
	return found, nil
}

// matchDevice accepts a prefix of a UUID if it matches one device only.
func matchDevice(query Query, known []gpu.UUID) (gpu.UUID, error) {
	var matches []gpu.UUID
	var names []string
	for _, id := range known {
		if id == query.Device {
			return id, nil
		}
		if strings.HasPrefix(string(id), string(query.Device)) {
			matches = append(matches, id)
		}
		names = append(names, string(id))
	}
	switch len(matches) {
	case 1:
		return matches[0], nil
	case 0:
		return "", &NotFoundError{Query: query, Nearest: Nearest(string(query.Device), names, 3)}
	}
	return "", &NotFoundError{Query: query, Nearest: texts(matches), Why: fmt.Sprintf("%d devices start with that", len(matches))}
}

func (t *Trace) selectProcess(query Query) (*Trace, error) {
	i := slices.IndexFunc(t.Processes, func(p ProcessFact) bool { return p.PID == query.PID })
	if i < 0 {
		return nil, &NotFoundError{Query: query, Why: "it is not in /proc, or no container runs it"}
	}
	process := t.Processes[i]
	if process.PodUID == "" {
		return nil, &NotFoundError{Query: query, Why: "it belongs to no pod"}
	}
	for _, pod := range t.Pods {
		if pod.UID != process.PodUID {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(pod.Containers), func(c Container) bool {
			return !slices.Contains(c.PIDs, query.PID) && (process.ContainerID == "" || c.ID != process.ContainerID)
		})
		if len(own) > 0 {
			pod.Containers = own // otherwise no source names its container: show them all
		}
		found := t.part(query, []Pod{pod}, nil)
		found.Processes = []ProcessFact{process}
		return found, nil
	}
	found := t.part(query, []Pod{{UID: process.PodUID, Sources: []Source{process.Source}, Containers: []Container{}}}, nil)
	found.Processes = []ProcessFact{process}
	return found, nil
}

// part returns the picture with these pods and devices, and the disagreements about them.
func (t *Trace) part(query Query, pods []Pod, devices []Device) *Trace {
	concerned := map[gpu.UUID]bool{}
	names := map[Ref]map[string]bool{}
	for _, pod := range pods {
		names[pod.Ref()] = map[string]bool{"": true}
		for _, container := range pod.Containers {
			names[pod.Ref()][container.Name] = true
			for _, device := range container.Devices {
				concerned[device.UUID] = true
				concerned[device.Parent] = true
			}
		}
	}
	for _, device := range devices {
		concerned[device.UUID] = true
	}
	delete(concerned, "")
	found := &Trace{Subject: query.String(), Pods: pods, Devices: devices, Read: t.Read, Unread: t.Unread}
	for _, claim := range t.Claims {
		ofPod := func(ref Ref) bool { return names[ref] != nil }
		onDevice := func(d ClaimedDevice) bool {
			return slices.ContainsFunc(devices, func(other Device) bool { return other.UUID == d.UUID })
		}
		if slices.ContainsFunc(claim.Pods, ofPod) || slices.ContainsFunc(claim.Devices, onDevice) {
			found.Claims = append(found.Claims, claim)
		}
	}
	for _, d := range t.Disagreements {
		if names[d.Pod][d.Container] || (d.Pod == Ref{} && concerned[d.Device]) {
			found.Disagreements = append(found.Disagreements, d)
		}
	}
	return found
}

// Nearest returns up to limit names that resemble a text, best first: those that contain it, then those a few edits
// away.
func Nearest(text string, names []string, limit int) []string {
	type scored struct {
		name string
		cost int
	}
	var near []scored
	for _, name := range sortedTexts(names) {
		cost := spelling.Distance(text, name)
		if strings.Contains(name, text) || strings.HasSuffix(name, "/"+text[strings.LastIndexByte(text, '/')+1:]) {
			cost = 0
		}
		if cost <= spelling.Tolerance(text) {
			near = append(near, scored{name, cost})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return cmp.Compare(a.cost, b.cost) })
	var out []string
	for _, one := range near[:min(limit, len(near))] {
		out = append(out, one.name)
	}
	return out
}
