package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// stopOperator deletes the Deployments of Berth but the scheduler's, and waits for the end of their pods.
func (r *remover) stopOperator(ctx context.Context) error {
	others := func(o *unstructured.Unstructured) bool { return o.GetName() != schedulerName }
	if err := r.removeAll(ctx, deployments(), r.Namespace, ofBerth, others); err != nil {
		return err
	}
	return r.awaitEnd(ctx, labelName+"=berth-operator", "the operator's pods")
}

// stopScheduler deletes the Deployment of the scheduler and waits for the end of its pods.
func (r *remover) stopScheduler(ctx context.Context) error {
	ours := named(schedulerName)
	if err := r.removeAll(ctx, deployments(), r.Namespace, ofBerth, func(o *unstructured.Unstructured) bool {
		if ours(o) {
			r.once("warning: pods whose schedulerName is %s, %s-spread or %s-latency wait until there is such a scheduler",
				schedulerName, schedulerName, schedulerName)
		}
		return ours(o)
	}); err != nil {
		return err
	}
	return r.awaitEnd(ctx, labelName+"="+schedulerName, "the scheduler's pods")
}

// stopValidations deletes the pods that validate nodes, and their claims.
func (r *remover) stopValidations(ctx context.Context) error {
	for _, of := range []string{"pods", "resourceclaims"} {
		group, version := "", "v1"
		if of == "resourceclaims" {
			group = "resource.k8s.io"
		}
		if err := r.removeAll(ctx, resource(group, version, of), "", v1alpha1.ValidationLabel, nil); err != nil {
			return err
		}
	}
	return r.awaitEnd(ctx, v1alpha1.ValidationLabel, "the pods that validate nodes")
}

// stopAgents deletes the DaemonSets of Berth and waits for the end of their pods.
func (r *remover) stopAgents(ctx context.Context) error {
	if err := r.removeAll(ctx, daemonSets(), r.Namespace, ofBerth, func(o *unstructured.Unstructured) bool { return o.GetName() != Name }); err != nil {
		return err
	}
	return r.awaitEnd(ctx, labelName+" in (berth-agent, berth-mps)", "the pods of the agents")
}

// awaitEnd waits until the pods that a selector selects are gone. It does not wait for those of a node that is not ready, whose kubelet
// does not report their end.
func (r *remover) awaitEnd(ctx context.Context, selector, what string) error {
	var left []string
	return r.await(ctx, func(ctx context.Context) (bool, error) {
		found, err := listOf[corev1.Pod](ctx, r, pods(), r.Namespace, selector)
		if err != nil || len(found) == 0 {
			return err == nil, err
		}
		ready, err := r.readyNodes(ctx)
		if err != nil {
			return false, err
		}
		left = nil
		for i := range found {
			pod := &found[i]
			if node := pod.Spec.NodeName; node == "" || ready[node] {
				left = append(left, fmt.Sprintf("%s on %s", pod.Name, nodeOf(pod)))
			} else {
				r.once("warning: does not wait for the pod %s: its node %s is not ready", pod.Name, node)
			}
		}
		if len(left) > 0 {
			r.once("waiting for %s to end", what)
		}
		return len(left) == 0, nil
	}, func() string { return what + " have not ended: " + strings.Join(left, ", ") })
}

// readyNodes returns the names of the Nodes, and whether each is ready.
func (r *remover) readyNodes(ctx context.Context) (map[string]bool, error) {
	all, err := listOf[corev1.Node](ctx, r, nodes(), "", "")
	if err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for i := range all {
		ready[all[i].Name] = slices.ContainsFunc(all[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	return ready, nil
}

// progress is how far the cleaning of the hosts is.
type progress struct {
	observed bool
	desired  int
	clean    int
	skipped  []string
	waiting  []string
	refused  string
}

func (p *progress) done() bool {
	return p.observed && p.clean+len(p.skipped) >= p.desired && len(p.waiting) == 0
}

// cleanHosts starts the pods that clean the nodes, and waits until each node is clean. A node that is not ready is skipped.
func (r *remover) cleanHosts(ctx context.Context) error {
	if r.found.hosts == nil {
		return nil
	}
	if err := r.releaseHosts(ctx); err != nil {
		return err
	}
	var last progress
	err := r.await(ctx, func(ctx context.Context) (bool, error) {
		now, err := r.progress(ctx)
		if err != nil {
			return false, err
		}
		last = now
		return last.done(), nil
	}, func() string {
		text := fmt.Sprintf("%d of %d nodes are clean", last.clean, last.desired)
		if !last.observed {
			text = "kube-controller-manager has not acted on the DaemonSet " + Name
		}
		for _, why := range last.waiting {
			text += "\n  " + why
		}
		if last.refused != "" {
			text += "\n  " + last.refused
			if strings.Contains(last.refused, "PodSecurity") {
				text += "\n" + r.securityFix()
			}
		}
		return text
	})
	if err != nil && ctx.Err() == nil && r.Force && last.observed {
		r.print("warning: goes on (--force) %v", err)
		r.skipped = append(r.skipped, last.waiting...)
		err = nil
	}
	r.skipped = append(r.skipped, last.skipped...)
	return err
}

// progress reads how far the pods are, and prints each node once when it is clean.
func (r *remover) progress(ctx context.Context) (progress, error) {
	var p progress
	object, err := r.get(ctx, daemonSets(), r.Namespace, Name)
	if err != nil || object == nil {
		return p, err
	}
	var set appsv1.DaemonSet
	if err := decode(object, &set); err != nil {
		return p, err
	}
	p.observed, p.desired = set.Status.ObservedGeneration >= set.Generation, int(set.Status.DesiredNumberScheduled)
	found, err := listOf[corev1.Pod](ctx, r, pods(), r.Namespace, labelName+"="+Name)
	if err != nil {
		return p, err
	}
	var ready map[string]bool
	if slices.ContainsFunc(found, func(pod corev1.Pod) bool { return !podReady(&pod) }) {
		if ready, err = r.readyNodes(ctx); err != nil {
			return p, err
		}
	}
	own := 0
	for i := range found {
		pod, node := &found[i], nodeOf(&found[i])
		if !ownedBy(pod, &set) || pod.DeletionTimestamp != nil {
			continue
		}
		own++
		switch {
		case podReady(pod):
			p.clean++
			r.once("node %s is clean", node)
		case !ready[node]:
			p.skipped = append(p.skipped, node+": the node is not ready")
			r.once("warning: skips node %s, which is not ready: the agent's files stay on it", node)
		default:
			why := fmt.Sprintf("node %s: %s", node, reason(pod))
			p.waiting = append(p.waiting, why)
			r.once("waiting for %s", why)
		}
	}
	if own < p.desired {
		p.refused, err = r.refusal(ctx)
	}
	slices.Sort(p.waiting)
	slices.Sort(p.skipped)
	return p, err
}

// refusal returns why the DaemonSet controller cannot create the pods, as its last event says.
func (r *remover) refusal(ctx context.Context) (string, error) {
	found, err := listOf[corev1.Event](ctx, r, resource("", "v1", "events"), r.Namespace, "")
	if err != nil {
		return "", err
	}
	text := ""
	for i := range found {
		if e := &found[i]; e.InvolvedObject.Name == Name && e.Reason == "FailedCreate" {
			text = e.Message
		}
	}
	if text != "" {
		r.once("waiting: %s", text)
		if strings.Contains(text, "PodSecurity") {
			r.once("%s", r.securityFix())
		}
	}
	return text, nil
}

func ownedBy(pod *corev1.Pod, set *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == set.UID })
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// reason says why a pod is not ready, with the last lines of the log of a container that failed.
func reason(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if ended != nil && ended.ExitCode != 0 {
				return strings.TrimSpace("its pod fails: " + ended.Message)
			}
		}
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	return "its pod is " + string(pod.Status.Phase)
}
