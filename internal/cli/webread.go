package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/core/why"
)

const (
	// mayInterval is how long the answer counts to whether the user may list the pods of a namespace, mostMay for how many namespaces.
	mayInterval = time.Minute
	mostMay     = 200
	// mostEvaluating is for how many users reasons are evaluated at the same time.
	mostEvaluating = 2

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

	waits waitReasons

	mu sync.Mutex
	// own are the pods that only this reader has; nil where the lists have them.
	own   []corev1.Pod
	may   map[string]bool // by verb, resource and namespace
	mayAt time.Time
}

// webLists are objects that are kept current.
type webLists struct {
	gpuNodes *live.List[v1alpha1.GPUNode]
	nodes    *live.List[corev1.Node]
	pods     *live.List[corev1.Pod]
	// evaluating has an element for each evaluation of why pods wait that is under way, which needs all of them.
	evaluating chan struct{}
}

// evaluates waits until one more evaluation may begin, and returns what has to be called at its end.
func (l *webLists) evaluates() (end func()) {
	if l == nil {
		return func() {}
	}
	l.evaluating <- struct{}{}
	return func() { <-l.evaluating }
}

// keepNode takes from a node what is read of none: its images and who wrote which field are most of it.
func keepNode(node *corev1.Node) {
	node.ManagedFields, node.Annotations, node.Status.Images = nil, nil, nil
}

// newWebLists returns lists that are kept current until ctx ends, through a client whose requests have no limit of their time.
func newWebLists(ctx context.Context, client, watcher dynamic.Interface) *webLists {
	return &webLists{
		gpuNodes: live.New[v1alpha1.GPUNode](ctx, client, watcher, v1alpha1.GPUNodes(), nil),
		nodes:    live.New(ctx, client, watcher, coreResource("nodes"), keepNode),
		pods:     live.New(ctx, client, watcher, coreResource("pods"), (&live.PodKeeper{}).Keep),

		evaluating: make(chan struct{}, mostEvaluating),
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
	pods, err := all(ctx, r, (*webLists).ofPods, coreResource("pods"))
	switch {
	case apierrors.IsForbidden(err):
		in.Notes = append(in.Notes, "Only what belongs to namespaces whose pods you may list is named: "+denied(err))
		hidden = append(hidden, hiddenPods(err))
		pods = r.readSome(ctx, in)
	case err != nil:
		return nil, apiError(fmt.Errorf("list the pods: %w", err), "")
	default:
		if r.lists == nil {
			r.setOwn(pods)
		}
		r.agents(in, pods)
	}
	in.Bound, in.Waiting = boundOf(in.GPUNodes, pods), waitingOf(in.GPUNodes, pods)
	r.waits.setHidden(hidden)
	return in, nil
}

// boundOf returns when the pods were bound that hold devices.
func boundOf(nodes []v1alpha1.GPUNode, pods []corev1.Pod) map[string]*metav1.Time {
	holders, bound := board.Holders(nodes), map[string]*metav1.Time{}
	for i := range pods {
		if uid := string(pods[i].UID); holders[uid] {
			bound[uid] = board.BoundAt(&pods[i])
		}
	}
	return bound
}

// readSome returns the pods of the namespaces whose pods the user may list.
func (r *webReader) readSome(ctx context.Context, in *board.Input) []corev1.Pod {
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
	// The user's own is the first that is asked about.
	if at := slices.Index(namespaces, r.namespace); at > 0 {
		namespaces = slices.Insert(slices.Delete(namespaces, at, at+1), 0, r.namespace)
	}
	if more := len(namespaces) - mostMay; more > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("Whether you may list pods was asked for %d namespaces; %d more are shown without names", mostMay, more))
		namespaces = namespaces[:mostMay]
	}
	in.May = r.mayList(ctx, namespaces)
	if shared {
		r.setOwn(nil)
		r.agents(in, every)
		return visible(every, in.May)
	}
	pods := r.podsOf(ctx, in.May, namespaces)
	r.setOwn(pods)
	agents, err := r.api.AgentPods(ctx)
	if err != nil {
		in.Notes = append(in.Notes, "Whether the agents run is not known: "+denied(err))
		return pods
	}
	r.agents(in, agents)
	return pods
}

// visible returns the pods of the namespaces whose pods the user may list; may is nil where that is all.
func visible(pods []corev1.Pod, may func(string) bool) []corev1.Pod {
	if may == nil {
		return pods
	}
	var some []corev1.Pod
	for i := range pods {
		if may(pods[i].Namespace) {
			some = append(some, pods[i])
		}
	}
	return some
}

// setOwn keeps pods for podsAgain.
func (r *webReader) setOwn(pods []corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = pods
}

// podsAgain returns the pods that the user may see, as they are now where the lists have them: a page keeps no pods of the lists, since
// there are many pages.
func (r *webReader) podsAgain(may func(string) bool) []corev1.Pod {
	r.mu.Lock()
	own := r.own
	r.mu.Unlock()
	if own != nil || r.lists == nil {
		return own
	}
	ctx, cancel := context.WithTimeout(r.ctx, webTimeout)
	defer cancel()
	every, err := r.lists.pods.Get(ctx)
	if err != nil {
		return nil // The pods of this evaluation are not found, and the next read of the page says why.
	}
	return visible(every, may)
}

// agents adds on which nodes a pod of the agent is ready. Without any pod of the agent that is not known: the agents are processes of the
// hosts then, or are in another namespace, or there are none.
func (r *webReader) agents(in *board.Input, pods []corev1.Pod) {
	var agents []corev1.Pod
	for i := range pods {
		if r.api.IsAgent(&pods[i]) {
			agents = append(agents, pods[i])
		}
	}
	in.Agents = readyOn(agents)
	if in.Agents == nil && len(in.GPUNodes) > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("No pod of the agent is in namespace %s, so whether the agents run is not known: what is shown of the nodes can be old", r.api.AgentNamespace))
	}
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

// readyOn says on which nodes a pod is ready; nil without any pod.
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
	for _, namespace := range namespaces {
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

// shows tells whether the names of a namespace's pods may be shown.
func (r *webReader) shows(ctx context.Context) func(namespace string) bool {
	return func(namespace string) bool {
		for _, one := range []string{metav1.NamespaceAll, namespace} {
			if may, err := r.allowed(ctx, verbList, coreResource("pods"), one); err == nil && may {
				return true
			}
		}
		return false
	}
}
