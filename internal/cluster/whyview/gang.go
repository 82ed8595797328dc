package whyview

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/core/fleet"
	"github.com/berth-gpu/berth/internal/core/fleet/gang"
	"github.com/berth-gpu/berth/internal/core/why"
)

// gangKey tells gangs apart.
func gangKey(key gangplan.Key) string {
	if key.Source == gangplan.Labels {
		return key.String()
	}
	return key.String() + " of " + key.Source.String()
}

// BuildGang returns the values for a gang. The group is nil where there is no PodGroup. served are resources of the members that claims
// serve on some nodes at least; they do not count.
func BuildGang(objects *Objects, view *gangplan.Gang, group *gangplan.Group, levels gangplan.Levels, served []string) (why.GangInput, error) {
	in := why.GangInput{
		Key: gangKey(view.Key), Name: view.Key.String(), Min: int(view.Min), Done: int(view.Done), Stop: gangStop(view, group), Commands: commandsOf(view),
		Required: gang.Anywhere, Preferred: gang.Anywhere, Continues: continues(view), Notes: slices.Clone(objects.Notes),
	}
	if len(view.Members) == 0 || in.Stop.Code == why.GangInvalid {
		return in, nil
	}
	b := newBuilder(objects)
	for _, name := range served {
		b.served[name] = true
	}
	exists := map[string]int{}
	for i := range objects.Nodes {
		exists[objects.Nodes[i].Name] = i
	}
	q, err := gangplan.Require(gangplan.Input{
		View: view, Levels: levels,
		Requests: func(p *corev1.Pod) []fleet.Shape { return b.resources.Requests(p) },
		Node: func(p *corev1.Pod) (int, bool) {
			if p.Spec.NodeName == "" {
				return gang.Unbound, true
			}
			i, ok := exists[p.Spec.NodeName]
			return i, ok
		},
	})
	if err != nil {
		return in, err
	}
	if q.Problem != "" {
		in.Stop = why.GangStop{Code: why.GangInvalid, Text: q.Problem}
		return in, nil
	}
	in.Required, in.Preferred, in.Segment = q.Gang.Required, q.Gang.Preferred, q.Gang.Segment
	if err := b.classesOf(&in, &q); err != nil {
		return in, err
	}
	b.domains(&in, q.Keys, levels)
	return in, nil
}

// classesOf sets the members and the classes of those that wait. A member with a node counts to the class of those that are like it.
func (b *builder) classesOf(in *why.GangInput, q *gangplan.Requirements) error {
	known := map[string]int{}
	class := func(pod *corev1.Pod) (int, error) {
		bare := *pod
		bare.Spec.NodeName = ""
		text, err := gangplan.Signature(&bare)
		if err != nil {
			return 0, fmt.Errorf("read pod %s: %w", pod.Name, err)
		}
		at, ok := known[text]
		if !ok {
			at = len(known)
			known[text] = at
		}
		return at, nil
	}
	var first []*corev1.Pod
	for _, waits := range []bool{true, false} {
		for i, pod := range q.Members {
			if (q.Gang.Members[i].Node == gang.Unbound) != waits {
				continue
			}
			at, err := class(pod)
			if err != nil {
				return err
			}
			if at == len(first) {
				first = append(first, pod)
			}
		}
	}
	if len(first) > why.MaxClasses {
		in.Stop = why.GangStop{Code: why.GangKinds, Text: fmt.Sprintf("its members are of %d kinds, and at most %d are evaluated here", len(first), why.MaxClasses)}
		return nil
	}
	for i, pod := range q.Members {
		at, err := class(pod)
		if err != nil {
			return err
		}
		in.Members = append(in.Members, why.GangMember{Class: at, Node: pod.Spec.NodeName})
		if q.Gang.Members[i].Node != gang.Unbound {
			in.Placed++
		}
	}
	for _, pod := range first {
		made := b.build(pod)
		made.Pod.NotJudged = append(notJudged(pod), b.devices(pod)...)
		made.Notes = nil
		in.Classes = append(in.Classes, made)
		rules := gangplan.NewRules(pod)
		in.Alone = append(in.Alone, rules.Single)
	}
	return nil
}

// devices names the devices of a member that are not evaluated for gangs.
func (b *builder) devices(pod *corev1.Pod) (list []string) {
	if len(pod.Spec.ResourceClaims) > 0 {
		list = append(list, "the ResourceClaims of its members")
	}
	for _, s := range b.resources.Requests(pod) {
		if b.served[s.Resource] {
			list = append(list, "the "+s.Resource+" of its members, which a DeviceClass serves")
		}
	}
	return list
}

// domains sets the domains of the nodes. A level has the name that the configuration gives it, and otherwise its label key.
func (b *builder) domains(in *why.GangInput, keys []string, levels gangplan.Levels) {
	for _, key := range keys {
		name := key
		if i := slices.IndexFunc(levels, func(l gangplan.Level) bool { return l.Key == key }); i >= 0 {
			name = levels[i].Name
		}
		in.Levels = append(in.Levels, name)
	}
	in.Domains = map[string][]string{}
	for i := range b.objects.Nodes {
		n := &b.objects.Nodes[i]
		list := make([]string, len(keys))
		for k, key := range keys {
			list[k] = n.Labels[key]
		}
		in.Domains[n.Name] = list
	}
}

// gangStop returns what keeps the scheduler from planning a gang.
func gangStop(view *gangplan.Gang, group *gangplan.Group) why.GangStop {
	switch {
	case view.Problem != "":
		return why.GangStop{Code: why.GangInvalid, Text: view.Problem}
	case view.Waiting == "":
		return why.GangStop{}
	case view.Key.Source != gangplan.Labels && (group == nil || group.Deleting):
		return why.GangStop{Code: why.GangNoGroup, Text: view.Waiting}
	case len(view.Members) == 0:
		return why.GangStop{Code: why.GangIncomplete, Text: view.Waiting}
	case int64(len(view.Members))+int64(view.Done) < int64(view.Min):
		return why.GangStop{Code: why.GangIncomplete, Text: "only " + view.Waiting}
	}
	stop := why.GangStop{Code: why.GangGated, Text: "only " + view.Waiting}
	for _, pod := range view.Members {
		if list := stops(pod); len(pod.Spec.SchedulingGates) > 0 && len(list) > 0 && list[0].Code == why.Gated {
			stop.Gates = list[0].Names
			break
		}
	}
	return stop
}

// continues tells whether a gang on nodes has lost members, and the others go on. The conditions of its pods say it.
func continues(view *gangplan.Gang) bool {
	whole, bound := gangplan.WasWhole(view)
	return whole && !bound.IsZero()
}

// commandsOf returns the commands that change a gang. Its names are valid where there is no problem; otherwise there are no commands.
func commandsOf(view *gangplan.Gang) why.GangCommands {
	if view.Problem != "" {
		return why.GangCommands{}
	}
	key := view.Key
	all := "pods -n " + key.Namespace
	labelled := func(name string) bool {
		return len(view.Members) > 0 && !slices.ContainsFunc(view.Members, func(p *corev1.Pod) bool { return p.Labels[name] == "" })
	}
	required := slices.ContainsFunc(view.Members, func(p *corev1.Pod) bool { return p.Annotations[gangplan.AnnotationRequired] != "" })
	commands := why.GangCommands{
		Show: "kubectl get " + all, Minimum: "set " + gangplan.MinMember + " of its pods to " + why.Value,
		Level: "set the annotation of its required topology level to " + why.Value, NoLevel: "remove the annotation of its required topology level",
	}
	if resource, ok := key.Source.Resource(); ok {
		object := fmt.Sprintf("%s.%s -n %s %s", resource.Resource, resource.Group, key.Namespace, key.Name)
		commands.Show = "kubectl get " + object + " -o yaml"
		commands.Minimum = fmt.Sprintf(`kubectl patch %s --type=merge -p '{"spec":{"minMember":%s}}'`, object, why.Value)
		return commands
	}
	if !labelled(gangplan.PodGroup) {
		return commands
	}
	all += " -l " + gangplan.PodGroup + "=" + key.Name
	if key.Group != "" {
		all += "," + gangplan.GroupIndex + "=" + view.Members[0].Labels[gangplan.GroupIndex]
	}
	commands.Show = "kubectl get " + all
	if labelled(gangplan.MinMember) {
		commands.Minimum = fmt.Sprintf("kubectl label %s --overwrite %s=%s", all, gangplan.MinMember, why.Value)
	}
	if required {
		commands.Level = fmt.Sprintf("kubectl annotate %s --overwrite %s=%s", all, gangplan.AnnotationRequired, why.Value)
		commands.NoLevel = fmt.Sprintf("kubectl annotate %s %s-", all, gangplan.AnnotationRequired)
	}
	return commands
}

// GangsOf returns the gangs of pods in a namespace which a function selects, each once: first those of which members wait for nodes, then
// by name.
func GangsOf(pods []corev1.Pod, namespace string, selects func(*corev1.Pod) bool) []gangplan.Key {
	type found struct {
		key   gangplan.Key
		waits bool
	}
	var list []found
	for i := range pods {
		p := &pods[i]
		key, ok := gangplan.KeyOf(p)
		if !ok || p.Namespace != namespace || ended(p) || p.DeletionTimestamp != nil || !selects(p) {
			continue
		}
		at := slices.IndexFunc(list, func(f found) bool { return f.key == key })
		if at < 0 {
			at = len(list)
			list = append(list, found{key: key})
		}
		list[at].waits = list[at].waits || p.Spec.NodeName == ""
	}
	slices.SortFunc(list, func(a, b found) int {
		if a.waits != b.waits {
			if a.waits {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.Group, b.key.Group), cmp.Compare(a.key.Source, b.key.Source))
	})
	keys := make([]gangplan.Key, len(list))
	for i := range list {
		keys[i] = list[i].key
	}
	return keys
}
