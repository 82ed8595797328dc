package board

import (
	"regexp"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// textNames finds the names of pods and claims in the text of an agent.
type textNames struct {
	token *regexp.Regexp // what consists of parts with slashes between them: a name with its namespace, or a path
	word  *regexp.Regexp // what comes before a token and says that it is a name
}

// mostWord is how many bytes before a token are searched for the word.
const mostWord = 24

func newTextNames() *textNames {
	return &textNames{
		token: regexp.MustCompile(`[a-z0-9.-]*(?:/[a-z0-9.-]*)+`),
		word:  regexp.MustCompile(`(?i)(?:pod|claim)s?[ "'(]{1,3}$`),
	}
}

// hiddenName stands for a name that is not shown.
const hiddenName = "(name not shown: you may not list the pods of its namespace)"

// text bounds a text of an agent, and hides the names of pods and claims in it that the user may not see: those of namespaces that hold
// something, and what the text itself calls a pod or a claim. A path that begins with a slash is neither.
func (b *builder) text(text string) string {
	if b.in.May == nil {
		return short(text)
	}
	if b.names == nil {
		b.names = newTextNames()
		b.namespaces = Namespaces(b.in.GPUNodes)
	}
	var out strings.Builder
	last := 0
	for _, at := range b.names.token.FindAllStringIndex(text, -1) {
		start, end := at[0], at[1]
		out.WriteString(text[last:start])
		called := b.names.word.MatchString(text[max(0, start-mostWord):start])
		if token := text[start:end]; b.hides(token, called) {
			out.WriteString(hiddenName)
		} else {
			out.WriteString(token)
		}
		last = end
	}
	out.WriteString(text[last:])
	return short(out.String())
}

// hides reports whether a token names what the user may not see. Called says that the text calls it a pod or a claim.
func (b *builder) hides(token string, called bool) bool {
	parts := strings.Split(token, "/")
	if parts[0] == "" {
		return false // a path
	}
	for i, part := range parts[:len(parts)-1] {
		if (i == 0 && called || b.namespaces[part]) && !b.shows(part) {
			return true
		}
	}
	return false
}

// Namespaces returns the namespaces of all holders.
func Namespaces(nodes []v1alpha1.GPUNode) map[string]bool {
	found := map[string]bool{}
	eachHolder(nodes, func(h *v1alpha1.Holder) { found[h.Namespace] = true })
	delete(found, "")
	return found
}

// Holders returns the UIDs of the pods that hold devices.
func Holders(nodes []v1alpha1.GPUNode) map[string]bool {
	found := map[string]bool{}
	eachHolder(nodes, func(h *v1alpha1.Holder) {
		found[h.PodUID] = true
		for i := range h.Pods {
			found[h.Pods[i].UID] = true
		}
	})
	return found
}

func eachHolder(nodes []v1alpha1.GPUNode, visit func(*v1alpha1.Holder)) {
	for i := range nodes {
		for k := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[k]
			for h := range d.Holders {
				visit(&d.Holders[h])
			}
			for m := range d.MIGDevices {
				for h := range d.MIGDevices[m].Holders {
					visit(&d.MIGDevices[m].Holders[h])
				}
			}
		}
	}
}
