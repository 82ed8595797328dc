package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// modelSeparator separates models in the text of a ModelSet.
const modelSeparator = "|"

// ModelSet is a set of GPU models. The zero value is every model. Sets of the same models are equal.
type ModelSet struct{ names string }

// Models returns the set of these models; empty names count as none.
func Models(names ...string) ModelSet {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	return ModelSet{strings.Join(names, modelSeparator)}
}

// ParseModels returns the set of the models in a text like "P100|T4"; an empty one is every model.
func ParseModels(text string) ModelSet { return Models(strings.Split(text, modelSeparator)...) }

// Allows tells whether a model is in the set.
func (m ModelSet) Allows(model string) bool {
	if m.names == "" {
		return true
	}
	for name := range strings.SplitSeq(m.names, modelSeparator) {
		if name == model {
			return true
		}
	}
	return false
}

// String returns the models in alphabetical order, separated by |; every model is the empty text.
func (m ModelSet) String() string { return m.names }

// Shape is what a pod requests. Pods of equal shapes are the same to a policy.
type Shape struct {
	// CPU is in thousandths of a core, Memory in MiB.
	CPU    int64
	Memory int64
	// GPUs is the number of GPUs, Share what the pod requests of each, in thousandths. Both are 0, or none.
	GPUs  int32
	Share int32
	// Models are the models that the pod accepts.
	Models ModelSet
	// Resource is the name of the resource of which GPUs is the number of devices; Share is 0 then. It is empty for shares.
	Resource string
	// Traffic is what the pod says that it needs much of.
	Traffic Traffic
}

// Traffic is a set of bandwidths of which a pod needs much.
type Traffic uint8

const (
	// Memory bandwidth of the GPU: two such pods do not share a GPU.
	Bandwidth Traffic = 1 << iota
	// Bandwidth to the host: such pods are kept apart by PCIe switch where that is possible.
	HostBandwidth
)

// Of returns what the pod takes of an entry, in thousandths.
func (s *Shape) Of(g *GPU) int32 {
	if s.Resource != "" {
		return g.Unit
	}
	return s.Share
}

// wants tells whether an entry is of the kind that the pod requests.
func (s *Shape) wants(g *GPU) bool { return s.Resource == g.Resource }

// Demand returns what the pod requests of GPUs in all, in thousandths. A device of a resource counts as a whole GPU.
func (s Shape) Demand() int64 {
	if s.Resource != "" {
		return int64(s.GPUs) * Whole
	}
	return int64(s.GPUs) * int64(s.Share)
}

// Shared tells whether the pod requests shares of GPUs.
func (s Shape) Shared() bool { return s.GPUs > 0 && s.Resource == "" && s.Share < Whole }

// String returns the shape in words.
func (s Shape) String() string {
	text := fmt.Sprintf("%s CPU, %d MiB", cores(s.CPU), s.Memory)
	switch {
	case s.GPUs == 0:
		return text + ", no GPU"
	case s.Resource != "":
		text += fmt.Sprintf(", %d %s", s.GPUs, s.Resource)
	case s.Share == Whole:
		text += fmt.Sprintf(", %d GPU", s.GPUs)
	default:
		text += fmt.Sprintf(", %d GPU x %d/1000", s.GPUs, s.Share)
	}
	if s.Models != (ModelSet{}) {
		text += " of " + s.Models.String()
	}
	return text
}

// Validate returns an error for a shape that no pod can have.
func (s Shape) Validate() error {
	switch {
	case s.CPU < 0 || s.CPU > MaxAmount || s.Memory < 0 || s.Memory > MaxAmount:
		return fmt.Errorf("a pod of %d thousandths of a core and %d MiB; want 0 to %d", s.CPU, s.Memory, int64(MaxAmount))
	case s.GPUs < 0 || s.GPUs > MaxGPUs:
		return fmt.Errorf("a pod of %d GPUs; want 0 to %d", s.GPUs, MaxGPUs)
	case s.Share < 0 || s.Share > Whole:
		return fmt.Errorf("a pod of %d thousandths of a GPU; want 0 to %d", s.Share, Whole)
	case s.Resource != "" && (s.Share != 0 || s.GPUs == 0):
		return fmt.Errorf("a pod of %d %s with %d thousandths of each; want at least 1 and no share", s.GPUs, s.Resource, s.Share)
	case s.Resource == "" && (s.GPUs == 0) != (s.Share == 0):
		return fmt.Errorf("a pod of %d GPUs with %d thousandths of each; want both or none", s.GPUs, s.Share)
	}
	return nil
}

// cores prints thousandths of a core as cores.
func cores(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprint(milli / 1000)
	}
	return strings.TrimRight(fmt.Sprintf("%d.%03d", milli/1000, milli%1000), "0")
}
