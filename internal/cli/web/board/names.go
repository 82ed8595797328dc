package board

import (
	"regexp"
	"slices"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// nameForm is a namespace and a name of it, where a text of an agent has them.
func nameForm() *regexp.Regexp {
	return regexp.MustCompile(`(\b(?:pods?|claims?|ResourceClaims?) )?\b([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})`)
}

// hiddenName stands for a name that is not shown.
const hiddenName = "(name not shown: you may not list the pods of its namespace)"

// text bounds a text of an agent, and hides the names of pods and claims in it that the user may not see: those of namespaces that hold
// something, and what the text itself calls a pod or a claim. A path of a file is neither.
func (b *builder) text(text string) string {
	if b.in.May == nil {
		return short(text)
	}
	if b.names == nil {
		b.names = nameForm()
		b.namespaces = Namespaces(b.in.GPUNodes)
	}
	return short(b.names.ReplaceAllStringFunc(text, func(found string) string {
		parts := b.names.FindStringSubmatch(found)
		if word, namespace := parts[1], parts[2]; (word != "" || b.namespaces[namespace]) && !b.shows(namespace) {
			return word + hiddenName
		}
		return found
	}))
}

// Namespaces returns the namespaces of all holders.
func Namespaces(nodes []v1alpha1.GPUNode) map[string]bool {
	found := map[string]bool{}
	for i := range nodes {
		for k := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[k]
			holders := slices.Clone(d.Holders)
			for m := range d.MIGDevices {
				holders = append(holders, d.MIGDevices[m].Holders...)
			}
			for h := range holders {
				found[holders[h].Namespace] = true
			}
		}
	}
	delete(found, "")
	return found
}
