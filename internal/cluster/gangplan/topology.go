package gangplan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// Annotations of pods, or of the PodGroup, by which a gang says where it has to be. A level is the name of a Level or a label key of nodes.
const (
	// AnnotationRequired is the level of which all members have to be in one domain.
	AnnotationRequired = "berth.dev/topology-required"
	// AnnotationPreferred is the level of which all members should be in one domain.
	AnnotationPreferred = "berth.dev/topology-preferred"
	// AnnotationSegment is the level of which each segment has to be in one domain. A segment is AnnotationSegmentSize members of
	// consecutive ranks.
	AnnotationSegment     = "berth.dev/topology-segment"
	AnnotationSegmentSize = "berth.dev/topology-segment-size"
)

// Level is a level of the topology: nodes with an equal value of the label Key are in one domain.
type Level struct {
	Name string
	Key  string
}

// Levels are the levels that a configuration names, the widest first.
type Levels []Level

// DefaultLevels returns the levels of a configuration that names none. Zone and hostname are labels of Kubernetes
// (k8s.io/api/core/v1/well_known_labels.go) and the clique is one of NVIDIA's GPU feature discovery. Block and rack are what tests and
// examples of Kueue, Grove and Kubernetes' own PodGroup write; no program sets them by itself. Where the nodes of a cluster have others, a
// configuration names these in their place, the widest first:
//
//   - cloud.google.com/gce-topology-block, -subblock and -host of GKE;
//   - topology.k8s.aws/network-node-layer-1, -2 and -3 of EKS;
//   - fabric.topograph.run/tier-N (0 the narrowest) and accelerator.topograph.run/domain of NVIDIA's Topograph 1.0;
//     network.topology.nvidia.com/core, /spine, /leaf and /accelerator of the releases before.
func DefaultLevels() Levels {
	return Levels{
		{"zone", "topology.kubernetes.io/zone"}, {"block", "topology.kubernetes.io/block"}, {"rack", "topology.kubernetes.io/rack"},
		{"clique", "nvidia.com/gpu.clique"}, {"node", "kubernetes.io/hostname"},
	}
}

// resolve returns the label key of a level, which is the value itself when no level has it as its name.
func (l Levels) resolve(value string) string {
	if i := slices.IndexFunc(l, func(level Level) bool { return level.Name == value }); i >= 0 {
		return l[i].Key
	}
	return value
}

// NameOf returns the name of the level that has a label key, which is the key itself when no level has it.
func (l Levels) NameOf(key string) string {
	if i := slices.IndexFunc(l, func(level Level) bool { return level.Key == key }); i >= 0 {
		return l[i].Name
	}
	return key
}

// wider tells whether both label keys are those of levels, and the first of a wider one.
func (l Levels) wider(key, than string) bool {
	a := slices.IndexFunc(l, func(level Level) bool { return level.Key == key })
	b := slices.IndexFunc(l, func(level Level) bool { return level.Key == than })
	return a >= 0 && a < b
}

func (l Levels) names() string {
	names := make([]string, len(l))
	for i := range l {
		names[i] = l[i].Name
	}
	return strings.Join(names, ", ")
}

// Topology is where a gang has to be. Required, Preferred and SegmentLevel are label keys of nodes, or empty.
type Topology struct {
	Required  string
	Preferred string
	// Unconstrained is true for a gang that says that any place will do.
	Unconstrained bool
	SegmentLevel  string
	SegmentSize   int32
}

// annotationSet is the annotations for the topology of one project.
type annotationSet struct {
	required      string
	preferred     string
	unconstrained string
	level         string
	size          string
	// layers is an annotation which Berth does not support.
	layers string
	// sizeAlone is true where a size without a level has a meaning that does not concern the place.
	sizeAlone bool
}

// annotationSets returns the known ones. The first of which a gang has an annotation is read, and the others are not.
//
//   - Kueue: kubernetes-sigs/kueue, apis/kueue/v1beta2/topology_types.go; the rules are those of
//     keps/2724-topology-aware-scheduling/README.md, Validation.
//   - KAI: kai-scheduler/KAI-Scheduler, pkg/podgrouper/podgrouper/plugins/constants/constants.go. KAI itself reads them on the owner of the
//     pods, so they count here only where the pod template has them too. A preferred level of segments is a preference and is not read.
func annotationSets() [3]annotationSet {
	return [3]annotationSet{
		{required: AnnotationRequired, preferred: AnnotationPreferred, level: AnnotationSegment, size: AnnotationSegmentSize},
		{
			required: "kueue.x-k8s.io/podset-required-topology", preferred: "kueue.x-k8s.io/podset-preferred-topology",
			unconstrained: "kueue.x-k8s.io/podset-unconstrained-topology",
			level:         "kueue.x-k8s.io/podset-slice-required-topology", size: "kueue.x-k8s.io/podset-slice-size",
			layers: "kueue.x-k8s.io/podset-slice-required-topology-constraints",
		},
		{
			required: "kai.scheduler/topology-required-placement", preferred: "kai.scheduler/topology-preferred-placement",
			level: "kai.scheduler/segment-topology-required-placement", size: "kai.scheduler/segment-size", sizeAlone: true,
		},
	}
}

func (d *annotationSet) names() [6]string {
	return [6]string{d.required, d.preferred, d.unconstrained, d.level, d.size, d.layers}
}

// topologyAnnotation tells whether an annotation is one of a set.
func topologyAnnotation(name string) bool {
	for _, d := range annotationSets() {
		names := d.names()
		if name != "" && slices.Contains(names[:], name) {
			return true
		}
	}
	return false
}

// annotated is a PodGroup or a member, whose annotations say where the gang has to be.
type annotated struct {
	// pod is nil for the PodGroup.
	pod         *corev1.Pod
	key         Key
	annotations map[string]string
}

func (a *annotated) title() string {
	if a.pod == nil {
		return a.key.title()
	}
	return podTitle(a.pod)
}

// topologyOf reads the topology of a gang. An annotation counts for the whole gang when one object has it; an empty one does not count.
func topologyOf(key Key, objects []annotated, levels Levels, minimum int32) (Topology, string) {
	for _, d := range annotationSets() {
		used := slices.ContainsFunc(objects, func(o annotated) bool {
			names := d.names()
			return slices.ContainsFunc(names[:], func(name string) bool { return name != "" && o.annotations[name] != "" })
		})
		if used {
			r := reader{key: key, objects: objects, levels: levels}
			return r.read(&d, minimum), r.problem
		}
	}
	return Topology{}, ""
}

// reader reads annotations until there is a problem.
type reader struct {
	key     Key
	objects []annotated
	levels  Levels
	problem string
}

// value returns the value of an annotation on which the objects agree, as same compares it, and the title of the first object.
func (r *reader) value(name string, same func(string) string) (value, from string) {
	if name == "" || r.problem != "" {
		return "", ""
	}
	for i := range r.objects {
		o := &r.objects[i]
		got := o.annotations[name]
		switch {
		case got == "":
		case from == "":
			value, from = got, o.title()
		case same(got) != same(value):
			r.problem = differ(r.key, name, quote(value), from, quote(got), o.title())
			return "", ""
		}
	}
	return value, from
}

// level returns the label key that an annotation names, or an empty text.
func (r *reader) level(name string) string {
	value, from := r.value(name, r.levels.resolve)
	if from == "" {
		return ""
	}
	resolved := r.levels.resolve(value)
	if len(content.IsLabelKey(resolved)) > 0 {
		r.problem = fmt.Sprintf("annotation %s of %s is %s, which is neither a level (%s) nor a label key: set one of these", name, from, quote(value), r.levels.names())
		return ""
	}
	return resolved
}

func (r *reader) read(d *annotationSet, minimum int32) Topology {
	var t Topology
	same := func(s string) string { return s }
	if value, from := r.value(d.layers, same); value != "" {
		r.problem = fmt.Sprintf("%s has the annotation %s, which Berth does not support: use %s and %s for one level", from, d.layers, d.level, d.size)
		return Topology{}
	}
	t.Required, t.Preferred, t.SegmentLevel = r.level(d.required), r.level(d.preferred), r.level(d.level)
	t.Unconstrained = r.boolean(d.unconstrained)
	t.SegmentSize = r.size(d)
	if r.problem == "" {
		r.problem = r.contradiction(d, &t, minimum)
	}
	if r.problem != "" {
		return Topology{}
	}
	if t.SegmentLevel == "" {
		t.SegmentSize = 0
	}
	return t
}

func (r *reader) boolean(name string) bool {
	value, from := r.value(name, func(s string) string { return s })
	if from == "" {
		return false
	}
	is, err := strconv.ParseBool(value)
	if err != nil {
		r.problem = fmt.Sprintf(`annotation %s of %s is %s: set it to "true" or "false"`, name, from, quote(value))
	}
	return is
}

func (r *reader) size(d *annotationSet) int32 {
	value, from := r.value(d.size, func(s string) string {
		if n, ok := count(s); ok {
			return strconv.FormatInt(n, 10)
		}
		return s
	})
	if from == "" {
		return 0
	}
	n, ok := count(value)
	if !ok {
		r.problem = noCount("annotation "+d.size, from, value, "set it to the number of pods of a segment")
	}
	return int32(n)
}

// contradiction says which two annotations contradict one another. As in Kueue, the size of segments has to divide the minimum: where it
// does not, the manifest is more likely wrong than a smaller last segment intended.
func (r *reader) contradiction(d *annotationSet, t *Topology, minimum int32) string {
	switch {
	case t.Unconstrained && (t.Required != "" || t.Preferred != ""):
		other := d.required
		if t.Required == "" {
			other = d.preferred
		}
		return fmt.Sprintf("gang %s has %s and also %s: remove one of them", r.key, d.unconstrained, other)
	case r.levels.wider(t.Preferred, t.Required):
		return fmt.Sprintf("gang %s requires one domain of %s, which is narrower than the %s that it prefers: require the wider one or prefer the narrower one",
			r.key, quote(t.Required), quote(t.Preferred))
	case t.SegmentLevel != "" && t.SegmentSize == 0:
		return fmt.Sprintf("gang %s has %s without %s: set it to the number of pods of a segment", r.key, d.level, d.size)
	case t.SegmentLevel == "" && t.SegmentSize != 0 && !d.sizeAlone:
		return fmt.Sprintf("gang %s has %s without %s: set it to the level of a segment", r.key, d.size, d.level)
	case t.SegmentLevel != "" && r.levels.wider(t.SegmentLevel, t.Required):
		return fmt.Sprintf("gang %s requires one domain of %s, which is narrower than the %s of its segments: require the wider one or a narrower one for segments",
			r.key, quote(t.Required), quote(t.SegmentLevel))
	case t.SegmentLevel != "" && minimum%t.SegmentSize != 0:
		return fmt.Sprintf("gang %s has segments of %d, which does not divide its minimum of %d members: set a size that does", r.key, t.SegmentSize, minimum)
	}
	return ""
}
