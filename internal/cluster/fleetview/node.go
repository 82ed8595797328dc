package fleetview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

// Pod is a pod that is bound to a node and has not ended.
type Pod struct {
	UID       string
	Namespace string
	Name      string
	// Requests are those of Resources.Requests.
	Requests []fleet.Shape
	// Assumed are the UUIDs of the physical GPUs that it was predicted to get, one list per request for devices; nil when nothing was
	// predicted.
	Assumed [][]string
}

// Input is what a node is made of.
type Input struct {
	Node *corev1.Node
	// Hardware is nil for a node without a GPUNode.
	Hardware *Hardware
	// Resources are those of the cluster.
	Resources Resources
	// Pods are the pods of the node in the order in which the kubelet gets them.
	Pods []Pod
	// CPU (thousandths of a core) and Memory (MiB) are what these and all other pods of the node request.
	CPU    int64
	Memory int64
	// Claimed are the UUIDs of the GPUs that are allocated to ResourceClaims, whole or in part.
	Claimed map[string]bool
}

// Holding says which GPUs a pod has.
type Holding struct {
	// GPUs are entries of the node, one set per request that has GPUs.
	GPUs []fleet.GPUSet
	// Reported is true when the GPUNode says all of it, and false where some of it was predicted.
	Reported bool
}

// View is a node as the fleet decides by it.
type View struct {
	Node fleet.Node
	// Holdings are those of the pods that request GPUs, by UID.
	Holdings map[string]Holding
	// Counted is true where the node is described by counts alone: which GPU a pod gets is not known there.
	Counted bool
	// Note says in one sentence what of the node cannot be used, or is empty.
	Note string
	// Unpredictable says why the kubelet may choose other GPUs than predicted, or is empty.
	Unpredictable string

	hardware *Hardware
	pods     []Pod
}

// Build returns the view of a node.
func Build(in Input) View {
	v := View{Holdings: map[string]Holding{}, hardware: in.Hardware, pods: in.Pods}
	v.Node = fleet.Node{
		Name: in.Node.Name, Model: in.Node.Labels[ProductLabel], Spread: true,
		CPU: bounded(in.Node.Status.Allocatable.Cpu().MilliValue()), Memory: bounded(in.Node.Status.Allocatable.Memory().Value() >> 20),
	}
	v.Node.FreeCPU, v.Node.FreeMemory = max(0, v.Node.CPU-in.CPU), max(0, v.Node.Memory-in.Memory)
	if h := in.Hardware; h != nil {
		v.Note, v.Node.Model = h.Note, cmp.Or(v.Node.Model, h.Product)
	}
	if in.Hardware == nil || in.Hardware.unusable {
		v.countDevices(&in)
		return v
	}
	v.Node.Links, v.Unpredictable, v.Node.Spread = in.Hardware.links, in.Hardware.unpredictable, !in.Hardware.packed
	alive := map[string]bool{}
	for i := range in.Pods {
		alive[in.Pods[i].UID] = true
	}
	reported := v.hold(&in, alive)
	v.silence(&in)
	for i := range in.Pods {
		v.predict(&in.Pods[i], reported[in.Pods[i].UID])
	}
	v.lessen(&in)
	return v
}

// found is what a pod is reported to have: entries, and how many devices.
type found struct {
	gpus    fleet.GPUSet
	devices int32
}

// hold makes the entries with what is held of them. It returns what pods hold, by UID.
func (v *View) hold(in *Input, alive map[string]bool) map[string]found {
	reported := map[string]found{}
	for i := range in.Hardware.entries {
		e := &in.Hardware.entries[i]
		g := e.gpu
		g.Free = g.Size
		if g.Size == 0 {
			g.Free = fleet.Whole
		}
		for _, h := range e.holders {
			lives := h.lasting
			for _, uid := range h.pods {
				lives = lives || alive[uid]
				reported[uid] = found{reported[uid].gpus.With(i), reported[uid].devices + 1}
			}
			// The kubelet frees the devices of a pod that has ended before it allocates others, and the agent's GPUNode comes later.
			if lives {
				g.Free = max(0, g.Free-g.Unit)
			}
		}
		if in.Claimed[e.uuid] && g.Unit == fleet.Whole {
			g.Free = 0
		}
		v.Node.GPUs = append(v.Node.GPUs, g)
	}
	return reported
}

// silence marks the devices of resources that the Node does not offer at all: their agent is not running, and the kubelet allocates none.
func (v *View) silence(in *Input) {
	var silent []string
	for i := range v.Node.GPUs {
		g := &v.Node.GPUs[i]
		if g.Resource == ResourceOfClaims || g.State > fleet.Degraded {
			continue
		}
		if quantity := in.Node.Status.Allocatable[corev1.ResourceName(g.Resource)]; quantity.Sign() > 0 {
			continue
		}
		g.State = fleet.Gone
		if !slices.Contains(silent, g.Resource) {
			silent = append(silent, g.Resource)
		}
	}
	if len(silent) > 0 {
		v.Note = fmt.Sprintf("the Node offers no %s, although its GPUNode lists healthy GPUs: the agent of the node does not run, or has just started", strings.Join(silent, ", "))
	}
}

// lessen leaves as many devices of a resource as the Node offers where its GPUNode lists more: after a change one of them is older than the
// other for a moment. Which devices the Node offers is not known, so that the last ones that are free count as gone.
func (v *View) lessen(in *Input) {
	listed := map[string]int64{}
	for i := range v.Node.GPUs {
		if g := &v.Node.GPUs[i]; g.Resource != ResourceOfClaims && g.State <= fleet.Degraded {
			listed[g.Resource] += devices(g)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		quantity := in.Node.Status.Allocatable[corev1.ResourceName(name)]
		excess := listed[name] - quantity.Value()
		if excess <= 0 {
			continue
		}
		v.Note = cmp.Or(v.Note, fmt.Sprintf("the Node offers %d %s, and its GPUNode lists %d: the smaller number counts until they agree", quantity.Value(), name, listed[name]))
		for i := range slices.Backward(v.Node.GPUs) {
			g := &v.Node.GPUs[i]
			if g.Resource != name || g.State > fleet.Degraded || g.Unit == 0 {
				continue
			}
			free := min(excess, int64(g.Free/g.Unit))
			if excess -= free; free == devices(g) {
				g.State = fleet.Gone
			} else {
				g.Free -= int32(free) * g.Unit
			}
		}
	}
}

// devices returns how many devices of its resource an entry has.
func devices(g *fleet.GPU) int64 {
	if g.Size == 0 || g.Unit == 0 {
		return 1
	}
	return int64(g.Size / g.Unit)
}

// predict places the requests of a pod: on the GPUs that it is reported to have, and the rest of them on those that it was or is predicted
// to get. Of a pod whose containers are being started one after another, the first requests are reported.
func (v *View) predict(pod *Pod, found found) {
	holding := Holding{}
	if found.devices > 0 {
		holding.GPUs, holding.Reported = []fleet.GPUSet{found.gpus}, true
	}
	have, number := found.devices, 0
	for i := range pod.Requests {
		s := pod.Requests[i]
		if s.GPUs == 0 || s.Resource == ResourceOfClaims {
			continue
		}
		number++
		v.addTraffic(&s, found.gpus)
		covered := min(have, s.GPUs)
		have -= covered
		if s.GPUs -= covered; s.GPUs == 0 {
			continue
		}
		pieces := v.Node.Pieces(s)
		for k, piece := range pieces {
			gpus := v.assume(assumed(pod, number-1, k, len(pieces)), &piece, found.gpus)
			for k := range gpus.All() {
				v.Node.GPUs[k].Free -= v.Node.GPUs[k].Unit
			}
			v.addTraffic(&piece, gpus)
			holding.GPUs, holding.Reported = append(holding.GPUs, gpus), false
		}
	}
	if len(holding.GPUs) > 0 {
		v.Holdings[pod.UID] = holding
	}
}

// assume returns the GPUs that a pod was predicted to get, if they are still free, or those that it would get now. Fewer than it requests
// when there are too few.
func (v *View) assume(uuids []string, s *fleet.Shape, reported fleet.GPUSet) fleet.GPUSet {
	if len(uuids) > 0 && !v.Counted {
		if gpus := v.entriesOf(uuids, s) &^ reported; v.free(gpus, s) {
			return gpus
		}
	}
	if gpus := fleet.Choose(&v.Node, s).GPUs; v.free(gpus, s) {
		return gpus
	}
	var some fleet.GPUSet
	for i := range v.Node.GPUs {
		if g := &v.Node.GPUs[i]; g.Resource == s.Resource && g.Free >= g.Unit && some.Len() < int(s.GPUs) {
			some = some.With(i)
		}
	}
	return some
}

// assumed returns the GPUs that piece number k of a request was predicted to get.
func assumed(pod *Pod, request, k, pieces int) []string {
	if request >= len(pod.Assumed) {
		return nil
	}
	list := pod.Assumed[request]
	if pieces < 2 || len(list) == 0 {
		return list
	}
	return list[k%len(list):][:1]
}

// entriesOf returns for each physical GPU the first entry of which a request can have a device.
func (v *View) entriesOf(uuids []string, s *fleet.Shape) fleet.GPUSet {
	var gpus fleet.GPUSet
	for _, uuid := range uuids {
		for i := range v.Node.GPUs {
			if v.hardware.entries[i].uuid == uuid && v.free(fleet.GPUSet(0).With(i), &fleet.Shape{Resource: s.Resource, GPUs: 1}) {
				gpus = gpus.With(i)
				break
			}
		}
	}
	return gpus
}

// free tells whether a request can have these GPUs.
func (v *View) free(gpus fleet.GPUSet, s *fleet.Shape) bool {
	if gpus.Len() != int(s.GPUs) || len(v.Node.GPUs) < fleet.MaxGPUs && gpus>>len(v.Node.GPUs) != 0 {
		return false
	}
	for i := range gpus.All() {
		if g := &v.Node.GPUs[i]; g.Resource != s.Resource || g.Free < g.Unit {
			return false
		}
	}
	return true
}

func (v *View) addTraffic(s *fleet.Shape, gpus fleet.GPUSet) {
	if s.Traffic == 0 {
		return
	}
	for i := range gpus.All() {
		v.Node.AddTraffic(i, s.Traffic)
	}
}

// countDevices describes the devices of a node by the counts of its Node: GPUs without links, of which as many are free as the pods leave.
func (v *View) countDevices(in *Input) {
	v.Counted = true
	if v.Note == "" && v.Node.Model != "" {
		v.Note = "there is no GPUNode: the counts of the Node decide, and links do not count"
	}
	var names []string
	for name := range in.Node.Status.Allocatable {
		if in.Resources.Is(name) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	position := uint8(0)
	for _, name := range names {
		quantity := in.Node.Status.Allocatable[corev1.ResourceName(name)]
		unit := int32(fleet.Whole)
		if offer, known := in.Resources[name]; known && offer.Unit > 0 {
			unit = offer.Unit
		}
		for left := min(quantity.Value(), fleet.MaxGPUs); left > 0 && len(v.Node.GPUs) < fleet.MaxGPUs; position++ {
			devices := min(left, int64(fleet.Whole/unit))
			size := int32(devices) * unit
			v.Node.GPUs = append(v.Node.GPUs, fleet.GPU{Resource: name, Unit: unit, Size: size, Free: size, Physical: position})
			left -= devices
		}
	}
	for i := range in.Pods {
		v.predict(&in.Pods[i], found{})
	}
}

// Letters describes the GPUs of the node in their order, for logs, a word each: its UUID with U for usable, D degraded, x
// draining, g gone, and how much of it is held in thousandths.
func (v *View) Letters() string {
	var words []string
	for i := range v.Node.GPUs {
		g := &v.Node.GPUs[i]
		size := g.Size
		if size == 0 {
			size = fleet.Whole
		}
		word := string("UDxg"[g.State])
		if held := size - g.Free; held > 0 {
			word += fmt.Sprint(held)
		}
		if !v.Counted && v.hardware != nil {
			word = v.hardware.entries[i].uuid + "=" + word
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// Entries returns the entries of physical GPUs that have devices of a resource, by UUID.
func (v *View) Entries(resource string) map[string]int {
	entries := map[string]int{}
	if v.Counted || v.hardware == nil {
		return entries
	}
	for i := range v.Node.GPUs {
		if v.Node.GPUs[i].Resource == resource {
			entries[v.hardware.entries[i].uuid] = i
		}
	}
	return entries
}

// Devices returns the UUIDs of the physical GPUs of entries, ascending; none where they are not known.
func (v *View) Devices(gpus fleet.GPUSet) []string {
	if v.Counted || v.hardware == nil {
		return nil
	}
	var list []string
	for i := range gpus.All() {
		if i < len(v.hardware.entries) {
			list = append(list, v.hardware.entries[i].uuid)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
