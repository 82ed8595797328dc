package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cluster/gangplan"
	"github.com/berth-gpu/berth/internal/cluster/whyview"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/core/why"
)

// The kinds that are known by the labels of their pods alone.
const (
	kindGang            = "Gang"
	kindPodGroup        = "PodGroup"
	kindJobSet          = "JobSet"
	kindLeaderWorkerSet = "LeaderWorkerSet"
)

// ownerLabel returns the label by which the pods of a kind name their owner, or an empty text.
func ownerLabel(kind string) string {
	switch kind {
	case kindJobSet:
		return "jobset.sigs.k8s.io/jobset-name"
	case kindLeaderWorkerSet:
		return "leaderworkerset.sigs.k8s.io/name"
	}
	return ""
}

// byPods tells whether a kind is known by its pods alone: there is no object to read.
func byPods(kind string) bool {
	return kind == kindGang || kind == kindPodGroup || ownerLabel(kind) != ""
}

// gangKeys returns the gangs that a question is about, the one to answer for first. There are none for a pod that belongs to no gang, or
// that is none of its members.
func gangKeys(objects *whyObjects, subject *whySubject) []gangplan.Key {
	switch {
	case subject.pod != nil:
		key, ok := gangplan.KeyOf(subject.pod)
		phase := subject.pod.Status.Phase
		if !ok || subject.pod.DeletionTimestamp != nil || phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return nil
		}
		return []gangplan.Key{key}
	case subject.workload != nil:
		w := subject.workload
		return whyview.GangsOf(objects.Pods, w.Namespace, func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == w.UID })
		})
	}
	label := ownerLabel(subject.kind)
	return whyview.GangsOf(objects.Pods, subject.namespace, func(p *corev1.Pod) bool {
		if label != "" {
			return p.Labels[label] == subject.name
		}
		key, _ := gangplan.KeyOf(p)
		return key.Name == subject.name && (subject.kind == kindGang || key.Source != gangplan.Labels)
	})
}

// noGang says that nothing of that name was found.
func noGang(objects *whyObjects, subject *whySubject) error {
	names := []string{}
	for i := range objects.Pods {
		p := &objects.Pods[i]
		if p.Namespace != subject.namespace {
			continue
		}
		name := p.Labels[ownerLabel(subject.kind)]
		if key, ok := gangplan.KeyOf(p); ok && ownerLabel(subject.kind) == "" {
			name = key.Name
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	err := fmt.Errorf("why: no pod of namespace %s belongs to a gang of %s %s", subject.namespace, strings.ToLower(subject.kind), subject.name)
	if near := trace.Nearest(subject.name, names, 3); len(near) > 0 {
		return &hintError{err, "did you mean: " + strings.Join(near, ", ")}
	}
	return err
}

// readGroup reads the PodGroup of a gang, nil where there is none. What may not be read is the second result.
func readGroup(ctx context.Context, o *whyObjects, key gangplan.Key) (*gangplan.Group, string, error) {
	resource, ok := key.Source.Resource()
	if !ok {
		return nil, "", nil
	}
	object, err := o.client.Resource(resource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return gangplan.ParseGroup(key.Source, object), "", nil
	case apierrors.IsNotFound(err):
		var status apierrors.APIStatus
		if errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "") {
			o.Notes = append(o.Notes, fmt.Sprintf("The cluster has no PodGroups of %s.", resource.Group))
		}
		return nil, "", nil
	case apierrors.IsForbidden(err):
		return nil, denied(err), nil
	}
	return nil, "", apiError(fmt.Errorf("why: read PodGroup %s/%s: %w", key.Namespace, key.Name, err), "")
}

// gangInput returns what the answer for a gang is computed from.
func gangInput(ctx context.Context, objects *whyObjects, view *gangplan.Gang, group *gangplan.Group) (why.GangInput, error) {
	served, err := servedOfGang(ctx, objects, view.Members)
	if err != nil {
		return why.GangInput{}, err
	}
	in, err := whyview.BuildGang(&objects.Objects, view, group, gangplan.DefaultLevels(), served)
	if err != nil {
		return in, fmt.Errorf("why: gang %s: %w", view.Key, err)
	}
	return in, nil
}

// answerGang answers for the first of the gangs.
func answerGang(ctx context.Context, objects *whyObjects, subject *whySubject, keys []gangplan.Key, q *whyQuestion) (*v1alpha1.Why, error) {
	key := keys[0]
	group, hidden, err := readGroup(ctx, objects, key)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i := range objects.Pods {
		if p := &objects.Pods[i]; p.Namespace == key.Namespace {
			pods = append(pods, p)
		}
	}
	if others := keys[1:]; len(others) > 0 {
		objects.Notes = append(objects.Notes, fmt.Sprintf("%s has more gangs: %s.", subject.title, someKeys(others)))
	}
	view := gangplan.Build(key, pods, group, gangplan.DefaultLevels())
	in, err := gangInput(ctx, objects, &view, group)
	if err != nil {
		return nil, err
	}
	if hidden != "" {
		in.Stop = why.GangStop{Code: why.Hidden, Text: fmt.Sprintf("its PodGroup says what it needs, and this user may not read PodGroups of %s", key.Source)}
		in.Notes = append(in.Notes, hidden)
	}
	for _, stop := range objects.hidden {
		in.Stop = why.GangStop{Code: stop.Code, Text: fmt.Sprintf("of something that cannot be seen: this user may not list %s", strings.Join(stop.Names, ", "))}
		in.Notes = append(in.Notes, stop.Text)
	}
	if waiting := otherGangs(objects.Pods, key); len(waiting) > 0 && in.Placed < len(in.Members) {
		in.Notes = append(in.Notes, "Other gangs wait for nodes as well: "+someKeys(waiting)+".")
	}
	if err := assumeForGang(&in, &view, q); err != nil {
		return nil, err
	}
	answer := why.ExplainGang(in)
	if w := subject.workload; w != nil && answer.Code == why.GangIncomplete && len(w.Refusals) > 0 {
		answer.Notes = append(answer.Notes, "The API server says: "+w.Refusals[0])
	}
	if answer.Code == why.GangNoLevel {
		answer.Notes = append(answer.Notes, "The levels are the default ones of the scheduler; where its configuration has others (topologyLevels), gangs name these by their label keys here.")
	}
	made := whyObject(&answer, subject, subject.pod, nil)
	made.Gang = &v1alpha1.WhyGang{
		Key: key.String(), Source: key.Source.String(), Min: view.Min, Done: view.Done, Members: len(view.Members), Placed: in.Placed,
		Level: answer.Gang.Level, Domain: answer.Gang.Domain, Fit: answer.Gang.Most, Reason: string(answer.Code),
	}
	return made, nil
}

// otherGangs returns the other gangs of the cluster of which members wait for nodes, by namespace and name.
func otherGangs(pods []corev1.Pod, key gangplan.Key) []gangplan.Key {
	var keys []gangplan.Key
	for i := range pods {
		p := &pods[i]
		other, ok := gangplan.KeyOf(p)
		if ok && other != key && p.Spec.NodeName == "" && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending && !slices.Contains(keys, other) {
			keys = append(keys, other)
		}
	}
	slices.SortFunc(keys, func(a, b gangplan.Key) int { return cmp.Compare(a.String(), b.String()) })
	return keys
}

func someKeys(keys []gangplan.Key) string {
	var names []string
	for i := range keys {
		names = append(names, keys[i].String())
	}
	return phrase.Some(names, shownNodes)
}

// assumeForGang sets what is assumed, for all of its classes.
func assumeForGang(in *why.GangInput, view *gangplan.Gang, q *whyQuestion) error {
	for _, name := range q.ifGone {
		if slices.ContainsFunc(view.Members, func(p *corev1.Pod) bool { return p.Namespace+"/"+p.Name == name }) {
			return usagef("--if-gone %s: it is a member of the gang", name)
		}
	}
	asked := false
	for c := range in.Classes {
		one := *q
		if !slices.ContainsFunc(in.Classes[c].Pod.Requests, hasGPUs) {
			one.gpus = 0
		}
		asked = asked || one.gpus > 0
		if err := assume(&in.Classes[c], &one); err != nil {
			return err
		}
	}
	if q.gpus > 0 && !asked && len(in.Classes) > 0 {
		return usagef("--gpus %d: the members of the gang request no GPUs of a device plugin", q.gpus)
	}
	return nil
}
