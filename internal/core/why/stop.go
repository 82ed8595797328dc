package why

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// KueuePrefix begins the names of Kueue's scheduling gates.
const KueuePrefix = "kueue.x-k8s.io/"

// stopped is the answer for a pod that no scheduler looks at yet. What it would find without that is a note.
func (in *Input) stopped(w *world, answer *Answer) {
	stop := &in.Pod.Stops[0]
	answer.Code, answer.Sentence = stop.Code, stop.sentence()
	if stop.Text != "" {
		answer.Notes = append(answer.Notes, stop.Text)
	}
	for i := range in.Pod.Stops[1:] {
		answer.Notes = append(answer.Notes, in.Pod.Stops[i+1].sentence())
	}
	answer.Changes = stop.changes()
	if stop.Code != Gated && stop.Code != QuotaFull && stop.Code != Suspended || len(w.nodes) == 0 || len(w.requests) == 0 {
		return
	}
	var after Answer
	verdicts := w.judge(&after)
	if len(after.Fitting) > 0 {
		answer.Notes = append(answer.Notes, fmt.Sprintf("It would fit on %s now.", some(after.Fitting)))
		return
	}
	w.dominate(&after, verdicts)
	answer.Groups = group(verdicts)
	answer.Notes = append(answer.Notes, "After that: "+after.Sentence)
}

func (s *Stop) sentence() string {
	name := strings.Join(s.Names, ", ")
	switch s.Code {
	case NotFound:
		return "There is no such pod."
	case Deleted:
		return "The pod is being deleted; it is not scheduled any more."
	case Ended:
		return "The pod has ended; it does not wait."
	case Bound:
		return fmt.Sprintf("The pod does not wait for a node: it is on %s.", name)
	case Suspended:
		return fmt.Sprintf("%s has no pods because it is suspended.", s.Names[0])
	case NoClaim:
		return "The pod waits because a ResourceClaim that it names cannot be found."
	case Hidden:
		return fmt.Sprintf("Why the pod waits cannot be seen: this user may not list %s.", name)
	case NoPods:
		return fmt.Sprintf("%s has no pods that wait.", name)
	case QuotaFull:
		return s.quotas()
	case Gated:
		return s.gates()
	}
	return string(s.Code) + " " + name
}

func (s *Stop) quotas() string {
	if len(s.Quotas) == 0 {
		return fmt.Sprintf("%s has no pods because a quota of its namespace refuses them.", strings.Join(s.Names, ", "))
	}
	q := &s.Quotas[0]
	return fmt.Sprintf("%s has no pods because they would exceed the quota %s: a pod requests %s %s, and %s of %s are used.",
		strings.Join(s.Names, ", "), q.Name, q.Want, strings.TrimPrefix(q.Resource, "requests."), q.Used, q.Hard)
}

func (s *Stop) gates() string {
	var kueue, others []string
	for _, name := range s.Names {
		if strings.HasPrefix(name, KueuePrefix) {
			kueue = append(kueue, name)
			continue
		}
		others = append(others, name)
	}
	if len(kueue) > 0 {
		return fmt.Sprintf("The pod waits because Kueue has not admitted it yet (scheduling gate %s).", phrase.And(kueue))
	}
	return fmt.Sprintf("The pod waits because of the scheduling %s %s, which the controller that set %s must remove.",
		plural(int64(len(others)), "gate", "gates"), phrase.And(others), plural(int64(len(others)), "it", "them"))
}

// changes are what ends a stop. They are not acts on the cluster's nodes: what remains of the way is in the notes.
func (s *Stop) changes() []Change {
	switch s.Code {
	case Suspended:
		return []Change{s.resume()}
	case QuotaFull:
		return s.quotaChanges()
	case NoClaim:
		return []Change{{Text: "Create the claim or template, or correct its name in the pod's spec.resourceClaims."}}
	case Gated:
		if strings.HasPrefix(s.Names[0], KueuePrefix) {
			return []Change{{Text: "Kueue removes the gate when its queue has capacity.", Do: []string{"kubectl get workloads.kueue.x-k8s.io -A"}}}
		}
		return []Change{{Text: fmt.Sprintf("The controller that set the gate %s has to remove it.", s.Names[0])}}
	}
	return nil
}

// resume says how a suspended workload goes on. Kueue resumes those that it admits.
func (s *Stop) resume() Change {
	if len(s.Names) < 2 {
		return Change{Text: "Kueue resumes it when its queue has capacity.", Do: []string{"kubectl get workloads.kueue.x-k8s.io -A"}}
	}
	return Change{Text: "Resume it.", Do: s.Names[1:2]}
}

// quotaChanges are what makes each of the quotas sufficient.
func (s *Stop) quotaChanges() []Change {
	if len(s.Quotas) == 0 {
		return []Change{{Text: "End pods of the namespace, or ask for a higher limit.", Do: []string{"berth quota"}}}
	}
	var list []Change
	for i := range s.Quotas {
		q := &s.Quotas[i]
		list = append(list, Change{Text: fmt.Sprintf("Raise the limit of %s in the quota %s from %s to %s, or end pods of the namespace that request %s of it.",
			q.Resource, q.Name, q.Hard, q.Needed, q.Over)})
	}
	return list
}
