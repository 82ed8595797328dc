package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/cluster/whyview"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/core/why"
)

// whyQuestion is what berth why is asked.
type whyQuestion struct {
	// kind is the kind of the object, or empty for a pod or, when there is none, a Job.
	kind      string
	namespace string
	name      string
	ifGone    []string
	gpus      int
}

func newWhyCommand(deps Deps) *cobra.Command {
	var from sources
	var out output
	var question whyQuestion
	cmd := &cobra.Command{
		Use:   "why POD | job/NAME | gang/NAME",
		Short: "Say why a pod or a gang waits, and the smallest change with which it would run",
		Long: `Say why a pod waits: one reason, what is in the way on the nodes, and the smallest changes with
which the pod would fit, each checked against the changed cluster. For a Job, ReplicaSet or
Deployment it is about its first pod that waits or, when it has none, why there is none.

For a member of a gang, pods that start together or not at all, the answer is about the gang as a
whole: how many of its members fit, where, and what the next one lacks. A gang can be asked about
by a pod, by what created its pods (job/NAME, jobset/NAME, leaderworkerset/NAME), by podgroup/NAME
or by gang/NAME, the value of berth.dev/pod-group.

It reads the API server: the pod, all nodes and pods, the GPUNode objects of berth-agent, claims
and quotas. The answer does not depend on which scheduler the pod has, nor on what that scheduler
says. GPUs, CPU, memory, other resources, taints, node selectors, node affinity and ResourceClaims
are evaluated; of volumes, pod affinity, topology spread and host ports it says that they are not.

With --if-gone or --gpus the answer is that for a cluster without these pods, or for a pod that
requests another number of GPUs. Nothing is changed.

The exit code is 0 when there is an answer, and 2 when there is no such object or the API server
cannot be read.`,
		Example: `  berth why train-0 -n ml
  berth why ml/train-0                          the same
  berth why job/train -n ml                     the first pod of the Job that waits, or its gang
  berth why gang/train -n ml                    a gang: as a whole, from any of its members
  berth why train-0 --if-gone ml/notebook-7     what if that pod ended?
  berth why train-0 --gpus 2                    what if it requested 2 GPUs?
  berth why train-0 -o json | jq -r '.changes[0].message'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := question.parse(args[0], from.connection.Namespace, cmd.Flags().Changed("gpus")); err != nil {
				return err
			}
			api, noAPI := from.api()
			if api == nil {
				return &hintError{fmt.Errorf("why: no API server: %s", noAPI), "fix: " + from.connection.Fix()}
			}
			answer, err := explainWhy(cmd.Context(), api.Client, question, time.Now())
			if err != nil {
				return err
			}
			if err := out.print(deps.Out, answer, func(w io.Writer) error { return whyText(w, answer) }); err != nil {
				return err
			}
			if answer.Code == string(why.Hidden) {
				return errNotAllChecked
			}
			return nil
		},
	}
	from.bindKube(cmd.Flags())
	from.connection.AddNamespace(cmd.Flags(), "the pod's namespace (default: the context's)")
	cmd.Flags().StringArrayVar(&question.ifGone, "if-gone", nil, "answer for a cluster without this pod, NAME or NAMESPACE/NAME; can be repeated")
	cmd.Flags().IntVar(&question.gpus, "gpus", 0, "answer for a pod that requests so many GPUs")
	out.bind(cmd.Flags())
	return cmd
}

// The kinds that can be asked about, by their names on the command line.
const (
	kindJob        = "Job"
	kindReplicaSet = "ReplicaSet"
	kindDeployment = "Deployment"
	kindPodOnly    = "Pod"
)

func kindNames() map[string]string {
	return map[string]string{
		"pod": kindPodOnly, "pods": kindPodOnly, "po": kindPodOnly, "job": kindJob, "jobs": kindJob, "job.batch": kindJob, "jobs.batch": kindJob,
		"replicaset": kindReplicaSet, "replicasets": kindReplicaSet, "rs": kindReplicaSet, "replicaset.apps": kindReplicaSet,
		"deployment": kindDeployment, "deployments": kindDeployment, "deploy": kindDeployment, "deployment.apps": kindDeployment,
		"gang": kindGang, "podgroup": kindPodGroup, "podgroups": kindPodGroup, "jobset": kindJobSet, "jobsets": kindJobSet,
		"leaderworkerset": kindLeaderWorkerSet, "leaderworkersets": kindLeaderWorkerSet, "lws": kindLeaderWorkerSet,
	}
}

func (q *whyQuestion) parse(text string, namespace func() string, changed bool) error {
	if changed && (q.gpus < 1 || q.gpus > 64) {
		return usagef("--gpus %d: want 1 to 64", q.gpus)
	}
	if text == "" {
		return usagef("want the name of a pod, job/NAME or gang/NAME")
	}
	q.namespace, q.name = namespace(), text
	if first, rest, ok := strings.Cut(text, "/"); ok {
		if q.name = rest; kindNames()[strings.ToLower(first)] != "" {
			q.kind = kindNames()[strings.ToLower(first)]
		} else {
			q.namespace = first
		}
	}
	if q.name == "" || strings.Contains(q.name, "/") {
		return usagef("%s: want NAME, NAMESPACE/NAME, or job/NAME with -n", text)
	}
	for i, pod := range q.ifGone {
		if pod = strings.TrimPrefix(pod, "pod/"); !strings.Contains(pod, "/") {
			pod = q.namespace + "/" + pod
		}
		q.ifGone[i] = pod
	}
	slices.Sort(q.ifGone)
	q.ifGone = slices.Compact(q.ifGone)
	return nil
}

// explainWhy reads the cluster and answers.
func explainWhy(ctx context.Context, client dynamic.Interface, q whyQuestion, now time.Time) (*v1alpha1.Why, error) {
	read := whyReader{client: client, now: now}
	subject, err := read.subject(ctx, &q)
	if err != nil {
		return nil, err
	}
	objects, err := read.objects(ctx, subject)
	if err != nil {
		return nil, err
	}
	return answerWhy(ctx, objects, subject, &q)
}

// answerWhy answers from what was read.
func answerWhy(ctx context.Context, objects *whyObjects, subject *whySubject, q *whyQuestion) (*v1alpha1.Why, error) {
	var absent []why.Stop
	if keys := gangKeys(objects, subject); len(keys) > 0 {
		return answerGang(ctx, objects, subject, keys, q)
	}
	if byPods(subject.kind) {
		return nil, noGang(objects, subject)
	}
	pod := subject.pod
	if w := subject.workload; w != nil {
		first, bound := w.Waiting(objects.Pods)
		if pod = first; pod == nil {
			pod, absent = w.Pod(), []why.Stop{w.Absent(objects.Quotas, bound)}
		}
	}
	claims, served, err := whyClaimsOf(ctx, objects, pod)
	if err != nil {
		return nil, err
	}
	in := whyview.Build(&objects.Objects, pod, served)
	in.Pod.Stops = slices.Concat(absent, in.Pod.Stops, objects.hidden)
	if claims != nil {
		in.Claims = claims
	}
	if err := assume(&in, q); err != nil {
		return nil, err
	}
	answer := why.Explain(in)
	if claims != nil {
		answer.Notes = append(answer.Notes, claims.notes...)
	}
	return whyObject(&answer, subject, pod, absent), nil
}

// assume sets what is assumed.
func assume(in *why.Input, q *whyQuestion) error {
	var names []string
	for i := range in.Holders {
		names = append(names, in.Holders[i].Name)
	}
	for _, name := range q.ifGone {
		if !slices.Contains(names, name) {
			err := fmt.Errorf("why: --if-gone %s: no such pod is on a node", name)
			if near := trace.Nearest(name, names, 3); len(near) > 0 {
				return &hintError{err, "did you mean: " + strings.Join(near, ", ")}
			}
			return err
		}
	}
	in.Gone, in.GPUs = q.ifGone, q.gpus
	if q.gpus > 0 && !slices.ContainsFunc(in.Pod.Requests, hasGPUs) {
		return usagef("--gpus %d: pod %s requests no GPUs of a device plugin", q.gpus, in.Pod.Name)
	}
	return nil
}

// whyObject makes the object that is printed.
func whyObject(answer *why.Answer, subject *whySubject, pod *corev1.Pod, absent []why.Stop) *v1alpha1.Why {
	made := &v1alpha1.Why{
		TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindWhy), Subject: subject.title, Code: string(answer.Code), Sentence: answer.Sentence, If: answer.If,
		Nodes: answer.Nodes, Fits: answer.Fitting, Notes: answer.Notes, SearchLimited: answer.Limited, NothingHelps: answer.Nothing(),
	}
	if len(absent) == 0 && pod != nil {
		made.Pod = pod.Namespace + "/" + pod.Name
	}
	for i := range answer.Groups {
		g := &answer.Groups[i]
		made.Groups = append(made.Groups, v1alpha1.WhyGroup{
			Code: string(g.Code), Key: g.Key, Message: g.Text, Same: g.Same, Count: len(g.Nodes), Nodes: g.Nodes[:min(len(g.Nodes), mostWhyNodes)],
		})
	}
	for i := range answer.Changes {
		c := &answer.Changes[i]
		change := v1alpha1.WhyChange{Message: c.Text, Node: c.Node, Do: c.Do}
		for k := range c.Acts {
			change.Acts = append(change.Acts, whyAct(&c.Acts[k]))
		}
		made.Changes = append(made.Changes, change)
	}
	return made
}

func whyAct(a *why.Act) v1alpha1.WhyAct {
	made := v1alpha1.WhyAct{Kind: string(a.Kind), Node: a.Node, Pod: a.Pod, Key: a.Key, Count: a.Count}
	if a.Kind == why.RepairGPU || a.Kind == why.Repartition {
		made.GPU = &a.GPU
	}
	return made
}

// mostWhyNodes is how many nodes of a group are named in the object, shownNodes in the text.
const (
	mostWhyNodes = 100
	shownNodes   = 3
)

// whyText prints the answer for people.
func whyText(w io.Writer, answer *v1alpha1.Why) error {
	var text strings.Builder
	line := func(format string, args ...any) {
		text.WriteString(term.Clean(fmt.Sprintf(format, args...)) + "\n")
	}
	if answer.If != "" {
		line("%s:", upperFirst(answer.If))
	}
	line("%s", answer.Sentence)
	if answer.Gang != nil {
		line("")
		line("%s", gangLine(answer.Gang))
	}
	if len(answer.Groups) > 0 {
		line("")
		line("%d of %d nodes%s:", whyNodes(answer.Groups), answer.Nodes, placeOf(answer.Gang))
	}
	for i := range answer.Groups {
		g := &answer.Groups[i]
		line("  %s: %s", whyNames(g), g.Message)
	}
	if len(answer.Changes) > 0 {
		line("")
		line("what would help, the smallest change first:")
	}
	for i := range answer.Changes {
		line("  %s", answer.Changes[i].Message)
		for _, do := range answer.Changes[i].Do {
			line("    %s", do)
		}
	}
	switch {
	case answer.NothingHelps:
		line("")
		line("Nothing that is known here would help: no end of other pods, no repair, no other request and no further node of a kind that there is.")
	case answer.SearchLimited:
		line("The search ended early: a smaller change is possible.")
	}
	for i, note := range answer.Notes {
		if i == 0 {
			line("")
		}
		line("note: %s", note)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// gangLine says what the gang is: "gang ml/train (berth.dev): 8 members, 3 of which have nodes; at least 8 start together".
func gangLine(g *v1alpha1.WhyGang) string {
	text := fmt.Sprintf("gang %s (%s): %d members", g.Key, g.Source, g.Members)
	if g.Done > 0 {
		text += fmt.Sprintf(" and %d that have succeeded", g.Done)
	}
	text += fmt.Sprintf(", %d of them with a node", g.Placed)
	if g.Min > 0 {
		text += fmt.Sprintf("; at least %d start together", g.Min)
	}
	return text
}

// placeOf says what the nodes that are listed have in common.
func placeOf(g *v1alpha1.WhyGang) string {
	if g == nil {
		return ""
	}
	return " have no place for a member now"
}

func whyNodes(groups []v1alpha1.WhyGroup) (count int) {
	for i := range groups {
		count += groups[i].Count
	}
	return count
}

// whyNames names the nodes of a group; what is said about them is about the first.
func whyNames(g *v1alpha1.WhyGroup) string {
	names := strings.Join(g.Nodes[:min(len(g.Nodes), shownNodes)], ", ")
	switch more := g.Count - shownNodes; {
	case g.Count == 1:
		return names
	case more > 0:
		names = fmt.Sprintf("%s and %d more", names, more)
	}
	if g.Same {
		return fmt.Sprintf("%d nodes (%s)", g.Count, names)
	}
	return fmt.Sprintf("%d nodes (%s), at best", g.Count, names)
}

func upperFirst(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
