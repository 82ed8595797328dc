package why

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// because is the sentence about the dominant reason, which the nearest nodes have. It can name a more exact reason than a single node has.
func (w *world) because(g *Group, near []verdict) (Code, string) {
	o, names := &g.Worst, make([]string, 0, len(near))
	for i := range near {
		names = append(names, near[i].node.Name)
	}
	switch g.Code {
	case NoResource, NoDevices:
		return w.noResource(o)
	case InUse:
		return w.inUse(o, near)
	case CPUInUse, MemoryInUse, OtherInUse:
		return g.Code, waits(w.plainInUse(o, near))
	case FewGPUs:
		return g.Code, waits(fmt.Sprintf("it requests %d %s and no node%s has more than %d.", o.Want, o.Key, w.usable(near), most(near, func(o *Obstacle) int64 { return o.All })))
	case LittleCPU, LittleRAM, LittleOther:
		return g.Code, waits(fmt.Sprintf("it requests %s and no node%s has more than %s.", o.amount(o.Want), w.usable(near), o.amount(most(near, func(o *Obstacle) int64 { return o.All }))))
	case WrongModel:
		return g.Code, waits(fmt.Sprintf("it accepts only GPUs of the model %s, and those of the nodes with %s are %s.", w.wanted(), o.Key, phrase.And(modelsOf(near))))
	case NoOther:
		return g.Code, waits(fmt.Sprintf("no node has %s, of which it requests %d.", o.Key, o.Want))
	case Selector:
		return g.Code, waits(fmt.Sprintf("no node that has what it requests has %s, which it requires: %s.", o.Key, notSo(names)))
	}
	return g.Code, waits(w.state(g, names))
}

func notSo(names []string) string {
	return some(names) + plural(int64(len(names)), " does not have it", " do not have it")
}

// state is the clause about nodes that do not accept the pod.
func (w *world) state(g *Group, names []string) string {
	o, count := &g.Worst, int64(len(names))
	who := some(names)
	more := ""
	if o.Text != "" {
		more = ": " + strings.TrimSuffix(o.Text, ".")
	}
	switch g.Code {
	case Taint:
		return fmt.Sprintf("it does not tolerate the taint %s of %s.", o.Key, who)
	case Cordoned:
		return fmt.Sprintf("%s, which %s what it requests, %s cordoned.", who, plural(count, "has", "have"), plural(count, "is", "are"))
	case NotReady:
		return fmt.Sprintf("%s, which %s what it requests, %s not ready%s.", who, plural(count, "has", "have"), plural(count, "is", "are"), more)
	case NotValidated:
		return fmt.Sprintf("the GPUs of %s are not validated yet%s.", who, more)
	case Sick:
		return fmt.Sprintf("%s %s unhealthy GPUs and %s not accept pods%s.", who, plural(count, "has", "have"), plural(count, "does", "do"), more)
	case Health:
		return fmt.Sprintf("too few GPUs of %s are healthy: %d of %d %s can be allocated (%s), and it requests %d.", names[0], o.Have, o.All, o.Key, o.broken(), o.Want)
	case AgentDown:
		if o.Have > 0 {
			return fmt.Sprintf("%s offers %d of its %d %s, although all are there, and it requests %d: the agent has just changed them, or does not run.", names[0], o.Have, o.All, o.Key, o.Want)
		}
		return fmt.Sprintf("%s %s no %s, although the GPUs are there: the agent of the node does not run.", who, plural(count, "offers", "offer"), o.Key)
	case Many:
		return fmt.Sprintf("it requests %d %s, and %s %s requests for more than one, as the GPUs are shared.", o.Want, o.Key, who, plural(count, "refuses", "refuse"))
	case Contended:
		return fmt.Sprintf("it needs much memory bandwidth, and each free GPU of %s has another such pod.", who)
	case PodLimit:
		return fmt.Sprintf("%s %s as many pods as %s (%d).", who, plural(count, "has", "have"), plural(count, "it accepts", "they accept"), o.All)
	}
	return strings.TrimSuffix(o.blockText(), ".") + "."
}

// usable says which nodes are meant, when others are left out.
func (w *world) usable(near []verdict) string {
	if len(near) == len(w.nodes) {
		return ""
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		if len(n.Blocks) > 0 && w.hasSome(n) && !slices.ContainsFunc(near, func(v verdict) bool { return v.node.Name == n.Name }) {
			return " that it can use"
		}
	}
	return ""
}

// hasSome tells whether a node has GPUs of a resource that is requested.
func (w *world) hasSome(n *Node) bool {
	for _, d := range w.demands() {
		if n.stock(&d).all > 0 {
			return true
		}
	}
	return len(w.demands()) == 0
}

// most returns the largest value of what is in the way on the nodes.
func most(near []verdict, of func(*Obstacle) int64) (value int64) {
	for i := range near {
		value = max(value, of(&near[i].obstacles[0]))
	}
	return value
}

// inUse is the sentence for GPUs that other pods have.
func (w *world) inUse(o *Obstacle, near []verdict) (Code, string) {
	free, all := int64(0), int64(0)
	best, with := o, near[0].node.Name
	for i := range near {
		v := &near[i].obstacles[0]
		free, all = free+v.Have, all+v.All
		if v.Have > best.Have {
			best, with = v, near[i].node.Name
		}
	}
	where := w.usable(near)
	switch {
	case free == 0 && len(near) == 1:
		return InUse, waits(fmt.Sprintf("it requests %d %s and all %d of %s are in use.", o.Want, o.Key, all, with))
	case free == 0:
		return InUse, waits(fmt.Sprintf("it requests %d %s and all %d of the %d nodes%s are in use.", o.Want, o.Key, all, len(near), where))
	case free >= o.Want:
		return Scattered, waits(fmt.Sprintf("its %d %s must be on one node: %d are free on %s, at most %d on one (%s).",
			o.Want, o.Key, free, phrase.Count(len(near), "node"), best.Have, with))
	}
	return InUse, waits(fmt.Sprintf("no node%s has %d free %s: the most are %d, on %s.", where, o.Want, o.Key, best.Have, with))
}

// plainInUse is the clause about CPU, memory or another resource that lacks.
func (w *world) plainInUse(o *Obstacle, near []verdict) string {
	best, with := &near[0].obstacles[0], near[0].node.Name
	for i := range near {
		if v := &near[i].obstacles[0]; v.Have > best.Have {
			best, with = v, near[i].node.Name
		}
	}
	what := ""
	if d := w.demands(); len(d) > 0 {
		what = fmt.Sprintf(" with %d free %s", d[0].want, d[0].resource)
	}
	switch o.Key {
	case "cpu":
		return fmt.Sprintf("no node%s%s has %s free cores: the most are %s, on %s.", w.usable(near), what, cores(o.Want), cores(best.Have), with)
	case "memory":
		return fmt.Sprintf("no node%s%s has %s of free memory: the most are %s, on %s.", w.usable(near), what, memory(o.Want), memory(best.Have), with)
	}
	return fmt.Sprintf("no node%s%s has %d free %s: the most are %d, on %s.", w.usable(near), what, o.Want, o.Key, best.Have, with)
}

// noResource is the sentence when no node has devices of a resource.
func (w *world) noResource(o *Obstacle) (Code, string) {
	if o.Code == NoDevices {
		return NoDevices, waits(strings.TrimSuffix(o.blockText(), ".") + ".")
	}
	names := w.resources()
	if len(names) == 0 {
		return NoGPUs, waits(fmt.Sprintf("no node has GPUs, and it requests %d %s.", o.Want, o.Key))
	}
	if _, isMIG := parseProfile(o.Key); isMIG {
		return NoProfile, waits(fmt.Sprintf("no GPU has a MIG device of the profile %s in its layout: nodes offer %s.", strings.TrimPrefix(o.Key, migPrefix), phrase.And(names)))
	}
	return NoResource, waits(fmt.Sprintf("no node offers %s: nodes offer %s.", o.Key, phrase.And(names)))
}

// wanted are the models that the pod accepts.
func (w *world) wanted() string {
	for _, s := range w.requests {
		if s.GPUs > 0 {
			return strings.ReplaceAll(s.Models.String(), "|", " or ")
		}
	}
	return ""
}

// modelsOf lists the models of nodes.
func modelsOf(near []verdict) []string {
	var models []string
	for i := range near {
		if m := unknown(near[i].node.Model); !slices.Contains(models, m) {
			models = append(models, m)
		}
	}
	slices.Sort(models)
	return models
}
