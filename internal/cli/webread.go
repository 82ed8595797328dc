package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/evidence"
	"github.com/berth-gpu/berth/internal/cli/web/board"
	"github.com/berth-gpu/berth/internal/cli/web/live"
	"github.com/berth-gpu/berth/internal/cluster/gangview"
	"github.com/berth-gpu/berth/internal/cluster/whyview"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/core/why"
)

const (
	// mostWaiting is how many pods and gangs the page says why they wait, and evaluateEvery the least time between two evaluations.
	mostWaiting   = 12
	evaluateEvery = 5 * time.Second
	// mayInterval is how long the answer counts to whether the user may list the pods of a namespace, mostMay for how many namespaces.
	mayInterval = time.Minute
	mostMay     = 200

	verbList  = "list"
	verbWatch = "watch"
)

// webReader reads what the page shows, with the user's rights.
type webReader struct {
	api *evidence.API
	now func() time.Time
	// namespace is the one whose pods are shown in any case, if the user may list them.
	namespace string
	// ctx is that of the server: an evaluation and a watch outlive the request during which they begin.
	ctx context.Context
	// lists are the objects that are kept current; nil where each read lists them. verb is the right that a user needs to read from them.
	lists *webLists
	verb  string
	// collect collects what berth trace is asked.
	collect func(context.Context, trace.Query) (*trace.Trace, error)

	mu         sync.Mutex
	may        map[string]bool // by verb, resource and namespace
	mayAt      time.Time
	reasons    map[string]*v1alpha1.Why
	reasonsAt  time.Time
	evaluating bool
}

// webLists are objects that are kept current.
type webLists struct {
	gpuNodes *live.List[v1alpha1.GPUNode]
	nodes    *live.List[corev1.Node]
	pods     *live.List[corev1.Pod]
}

// newWebLists returns lists that are kept current until ctx ends, through a client whose requests have no limit of their time.
func newWebLists(ctx context.Context, client, watcher dynamic.Interface) *webLists {
	return &webLists{
		gpuNodes: live.New[v1alpha1.GPUNode](ctx, client, watcher, v1alpha1.GPUNodes()),
		nodes:    live.New[corev1.Node](ctx, client, watcher, coreResource("nodes")),
		pods:     live.New[corev1.Pod](ctx, client, watcher, coreResource("pods")),
	}
}

func (l *webLists) ofGPUNodes() *live.List[v1alpha1.GPUNode] { return l.gpuNodes }
func (l *webLists) ofNodes() *live.List[corev1.Node]         { return l.nodes }
func (l *webLists) ofPods() *live.List[corev1.Pod]           { return l.pods }

// all returns the objects of a resource, from the list that is kept current if the user has the right for that.
func all[T any](ctx context.Context, r *webReader, from func(*webLists) *live.List[T], resource schema.GroupVersionResource) ([]T, error) {
	if r.lists != nil {
		if may, err := r.allowed(ctx, r.verb, resource, metav1.NamespaceAll); err == nil && may {
			return from(r.lists).Get(ctx)
		}
	}
	return listOf[T](ctx, r.api.Client, resource)
}

// read reads the objects. Without the right to list the GPUNodes there is no page; without others parts of it are missing.
func (r *webReader) read(ctx context.Context) (*board.Input, error) {
	in := &board.Input{Time: r.now()}
	var err error
	if in.GPUNodes, err = all(ctx, r, (*webLists).ofGPUNodes, v1alpha1.GPUNodes()); err != nil {
		return nil, apiError(fmt.Errorf("list the GPUNode objects of berth-agent: %w", err), "")
	}
	var hidden []why.Stop
	if in.Nodes, err = all(ctx, r, (*webLists).ofNodes, coreResource("nodes")); err != nil {
		in.Notes = append(in.Notes, "Nodes are not read, so a node that does not respond is not recognized: "+denied(err))
		hidden = append(hidden, hiddenNodes(err))
	}
	switch in.Pods, err = all(ctx, r, (*webLists).ofPods, coreResource("pods")); {
	case apierrors.IsForbidden(err):
		in.Notes = append(in.Notes, "Only what belongs to namespaces whose pods you may list is named: "+denied(err))
		hidden = append(hidden, hiddenPods(err))
		r.readSome(ctx, in)
	case err != nil:
		return nil, apiError(fmt.Errorf("list the pods: %w", err), "")
	default:
		in.Agents = readyOn(slices.DeleteFunc(slices.Clone(in.Pods), func(pod corev1.Pod) bool { return !r.api.IsAgent(&pod) }))
	}
	r.waiting(in, hidden)
	return in, nil
}

// readSome reads the pods of the namespaces whose pods the user may list.
func (r *webReader) readSome(ctx context.Context, in *board.Input) {
	every, shared := r.everyPod(ctx)
	names := board.Namespaces(in.GPUNodes)
	if r.namespace != "" {
		names[r.namespace] = true
	}
	offered := offeredBy(in.GPUNodes)
	for i := range every {
		if waits(&every[i], offered) {
			names[every[i].Namespace] = true
		}
	}
	namespaces := slices.Sorted(maps.Keys(names))
	in.May = r.mayList(ctx, namespaces)
	if shared {
		in.Agents = readyOn(slices.DeleteFunc(slices.Clone(every), func(pod corev1.Pod) bool { return !r.api.IsAgent(&pod) }))
		in.Pods = slices.DeleteFunc(every, func(pod corev1.Pod) bool { return !in.May(pod.Namespace) })
		return
	}
	in.Pods = r.podsOf(ctx, in.May, namespaces)
	agents, err := r.api.AgentPods(ctx)
	if err != nil {
		in.Notes = append(in.Notes, "Whether the agents run is not known: "+denied(err))
	}
	in.Agents = readyOn(agents)
}

// everyPod returns the pods of all namespaces from a list that another account keeps current. Which of them the user may see is for the
// caller to find out.
func (r *webReader) everyPod(ctx context.Context) (pods []corev1.Pod, shared bool) {
	if r.lists == nil || r.verb != verbList {
		return nil, false
	}
	pods, err := r.lists.pods.Get(ctx)
	return pods, err == nil
}

// readyOn says on which nodes a pod is ready; nil without any pod, since the agents are processes of the hosts then.
func readyOn(pods []corev1.Pod) map[string]bool {
	var ready map[string]bool
	for i := range pods {
		if ready == nil {
			ready = map[string]bool{}
		}
		ready[pods[i].Spec.NodeName] = ready[pods[i].Spec.NodeName] || pods[i].DeletionTimestamp == nil && evidence.PodReady(&pods[i])
	}
	return ready
}

// mayList asks the API server which namespaces' pods the user may list. What it does not answer for is not shown.
func (r *webReader) mayList(ctx context.Context, namespaces []string) func(string) bool {
	may := map[string]bool{}
	for _, namespace := range namespaces[:min(len(namespaces), mostMay)] {
		if answer, err := r.allowed(ctx, verbList, coreResource("pods"), namespace); err == nil {
			may[namespace] = answer
		}
	}
	return func(namespace string) bool { return may[namespace] }
}

// allowed tells whether the user has a right. Answers count for mayInterval.
func (r *webReader) allowed(ctx context.Context, verb string, resource schema.GroupVersionResource, namespace string) (bool, error) {
	key := verb + " " + resource.String() + " " + namespace
	r.mu.Lock()
	if r.now().Sub(r.mayAt) > mayInterval {
		r.may, r.mayAt = map[string]bool{}, r.now()
	}
	known := r.may
	answer, ok := known[key]
	r.mu.Unlock()
	if ok {
		return answer, nil
	}
	answer, err := r.ask(ctx, &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: resource.Group, Resource: resource.Resource})
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	known[key] = answer
	r.mu.Unlock()
	return answer, nil
}

// ask asks the API server whether the user has a right.
func (r *webReader) ask(ctx context.Context, what *authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(review)
	if err != nil {
		return false, err
	}
	made, err := r.api.Client.Resource(authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews")).
		Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether the user may %s %s: %w", what.Verb, what.Resource, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, review); err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// podsOf lists the pods of the namespaces whose pods the user may list.
func (r *webReader) podsOf(ctx context.Context, may func(string) bool, namespaces []string) []corev1.Pod {
	pods := []corev1.Pod{}
	for _, namespace := range namespaces {
		if !may(namespace) {
			continue
		}
		// What cannot be read is not shown; the note about the rights has been left.
		some, _ := listIn[corev1.Pod](ctx, r.api.Client, coreResource("pods"), namespace)
		pods = append(pods, some...)
	}
	return pods
}

// waiting adds the pods and gangs that wait, with the reasons as far as they have been evaluated, and has them evaluated again.
// hidden is what the user may not read.
func (r *webReader) waiting(in *board.Input, hidden []why.Stop) {
	found := waitingOf(in)
	in.MoreWaiting = max(0, len(found)-mostWaiting)
	in.Waiting = found[:len(found)-in.MoreWaiting]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range in.Waiting {
		w := &in.Waiting[i]
		if why := r.reasons[w.Namespace+"/"+w.Pod]; why != nil {
			w.Sentence = why.Sentence
			if len(why.Changes) > 0 {
				w.Change = why.Changes[0].Message
			}
		}
	}
	if len(in.Waiting) > 0 {
		in.WaitingTime = r.reasonsAt
	}
	if len(in.Waiting) > 0 && !r.evaluating && r.now().Sub(r.reasonsAt) >= evaluateEvery {
		r.evaluating = true
		objects := whyview.Objects{Now: r.now(), Nodes: in.Nodes, Pods: in.Pods, GPUNodes: in.GPUNodes}
		go r.evaluate(objects, hidden, slices.Clone(in.Waiting))
	}
}

// waitingOf returns the pods with GPUs or claims that wait for a node, those of a gang once, the oldest first.
func waitingOf(in *board.Input) []v1alpha1.BoardWaiting {
	offered := offeredBy(in.GPUNodes)
	gangs := map[gangview.Key]int{}
	var all []v1alpha1.BoardWaiting
	for i := range in.Pods {
		pod := &in.Pods[i]
		if !waits(pod, offered) {
			continue
		}
		made := v1alpha1.BoardWaiting{Namespace: pod.Namespace, Name: pod.Name, Pod: pod.Name, Pods: 1, Since: pod.CreationTimestamp}
		if key, ok := gangview.KeyOf(pod); ok {
			if at, known := gangs[key]; known {
				all[at].Pods++
				continue
			}
			gangs[key], made.Name, made.Gang = len(all), key.Name, true
		}
		all = append(all, made)
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.BoardWaiting) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// offeredBy returns the names of the resources that the nodes offer.
func offeredBy(nodes []v1alpha1.GPUNode) map[string]bool {
	names := map[string]bool{"nvidia.com/gpu": true}
	for i := range nodes {
		for k := range nodes[i].Status.Devices {
			d := &nodes[i].Status.Devices[k]
			if d.Offered != nil {
				names[d.Offered.Resource] = true
			}
			for m := range d.MIGDevices {
				if offer := d.MIGDevices[m].Offered; offer != nil {
					names[offer.Resource] = true
				}
			}
		}
	}
	return names
}

// waits tells whether a pod with GPUs or claims waits for a node. One with scheduling gates waits for something else.
func waits(pod *corev1.Pod, offered map[string]bool) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending && len(pod.Spec.SchedulingGates) == 0 &&
		wantsGPUs(pod, offered)
}

// wantsGPUs tells whether a pod requests one of the resources, or has claims.
func wantsGPUs(pod *corev1.Pod, offered map[string]bool) bool {
	return len(pod.Spec.ResourceClaims) > 0 || slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		for name, quantity := range c.Resources.Limits {
			if !quantity.IsZero() && (offered[string(name)] || strings.HasPrefix(string(name), "nvidia.com/")) {
				return true
			}
		}
		return false
	})
}

// evaluate finds why each of them waits.
func (r *webReader) evaluate(objects whyview.Objects, hidden []why.Stop, waiting []v1alpha1.BoardWaiting) {
	reasons := map[string]*v1alpha1.Why{}
	for i := range waiting {
		w := &waiting[i]
		at := slices.IndexFunc(objects.Pods, func(p corev1.Pod) bool { return p.Namespace == w.Namespace && p.Name == w.Pod })
		if at < 0 || r.ctx.Err() != nil {
			continue
		}
		// Each answer has notes of its own.
		one := &whyObjects{Objects: objects, client: r.api.Client, hidden: slices.Clone(hidden)}
		subject := &whySubject{title: kindPodOnly + " " + w.Namespace + "/" + w.Pod, kind: kindPodOnly, namespace: w.Namespace, name: w.Pod, pod: &objects.Pods[at]}
		answer, err := answerWhy(r.ctx, one, subject, &whyQuestion{kind: kindPodOnly, namespace: w.Namespace, name: w.Pod})
		if err != nil {
			answer = &v1alpha1.Why{Sentence: "The reason is not known: " + err.Error()}
		}
		reasons[w.Namespace+"/"+w.Pod] = answer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons, r.reasonsAt, r.evaluating = reasons, r.now(), false
}
