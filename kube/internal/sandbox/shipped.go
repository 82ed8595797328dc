package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Names in the chart.
const (
	agentSetName   = "berth-agent"
	agentContainer = "agent"
	mpsSetName     = "berth-mps"
	mpsContainer   = "mps"
)

// labelNode tells the pods of the nodes' DaemonSets apart. A DaemonSet of one node has it in addition to the labels of
// the manifest, so the first node's agents are found as on any cluster.
const labelNode = "sandbox.berth.dev/node"

// annotationRestarted is the annotation that kubectl rollout restart changes.
const annotationRestarted = "kubectl.kubernetes.io/restartedAt"

// shippedSet returns a DaemonSet of the chart for this node alone, by its name in the chart. It differs from the chart's in its name, the
// label that tells its pods apart, and the node. The first node's set keeps the name.
func (n Node) shippedSet(base string) (*appsv1.DaemonSet, error) {
	objects, err := n.c.Rendered()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" && o.GetName() == base })
	if i < 0 {
		return nil, fmt.Errorf("the chart has no DaemonSet %s", base)
	}
	set := &appsv1.DaemonSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, set); err != nil {
		return nil, fmt.Errorf("read DaemonSet %s: %w", base, err)
	}
	if len(set.Spec.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("the DaemonSet %s has not one container", base)
	}
	set.Name = n.setName(set.Name)
	set.Spec.Selector.MatchLabels[labelNode] = n.name
	set.Spec.Template.Labels[labelNode] = n.name
	set.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
	return set, nil
}

func (n Node) setName(base string) string {
	if n.state().Index == 0 {
		return base
	}
	return base + "-" + n.name
}

// addDir gives the container a directory of the machine at the same path.
func addDir(set *appsv1.DaemonSet, dir string) {
	spec := &set.Spec.Template.Spec
	name := "sandbox-" + strconv.Itoa(len(spec.Volumes))
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name,
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: dir})
}

// agentSet returns the DaemonSet of the node's agent.
func (n Node) agentSet(more AgentOptions) (*appsv1.DaemonSet, error) {
	set, err := n.shippedSet(agentSetName)
	if err != nil {
		return nil, err
	}
	agent := &set.Spec.Template.Spec.Containers[0]
	o := n.state().Agent.with(more)
	agent.Args = append(agent.Args, o.Args...)
	for _, text := range o.Env {
		name, value, _ := strings.Cut(text, "=")
		agent.Env = append(agent.Env, corev1.EnvVar{Name: name, Value: value})
	}
	for _, dir := range o.Dirs {
		addDir(set, dir)
	}
	if o.Image != "" {
		agent.Image = o.Image
	}
	return set, nil
}

// StartMPS starts the node's supervisor of MPS daemons as it ships: the DaemonSet of the chart. It returns at once.
func (n Node) StartMPS(ctx context.Context) error {
	set, err := n.shippedSet(mpsSetName)
	if err != nil {
		return err
	}
	return n.applySet(ctx, set)
}

// KillMPS kills the node's supervisor of MPS daemons with SIGKILL. None runs until [Node.StartMPS].
func (n Node) KillMPS(ctx context.Context) error { return n.killSet(ctx, mpsSetName, mpsContainer) }

func (n Node) applySet(ctx context.Context, set *appsv1.DaemonSet) error {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		return fmt.Errorf("apply DaemonSet %s: %w", set.Name, err)
	}
	delete(object, "status")
	return n.c.ApplyObjects(ctx, &unstructured.Unstructured{Object: object})
}

// rollSet replaces the pod of one of the node's DaemonSets, as kubectl rollout restart does, and waits until the old
// one has ended. It first waits until the present one is available: otherwise the DaemonSet does not wait for the new
// one before it deletes the old one.
func (n Node) rollSet(ctx context.Context, base string) error {
	if err := n.waitRolled(ctx, base); err != nil {
		return err
	}
	sets := n.c.client.AppsV1().DaemonSets(agentNamespace)
	set, err := sets.Get(ctx, n.setName(base), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("roll out %s: %w", base, err)
	}
	if set.Spec.Template.Annotations == nil {
		set.Spec.Template.Annotations = map[string]string{}
	}
	set.Spec.Template.Annotations[annotationRestarted] = time.Now().Format(time.RFC3339Nano)
	if _, err := sets.Update(ctx, set, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("roll out %s: %w", base, err)
	}
	return n.waitRolled(ctx, base)
}

// waitRolled waits until the node has one pod of the DaemonSet, available and of its latest template.
func (n Node) waitRolled(ctx context.Context, base string) error {
	return waitFor(ctx, "the DaemonSet "+n.setName(base), nil, func(ctx context.Context) error {
		set, err := n.c.client.AppsV1().DaemonSets(agentNamespace).Get(ctx, n.setName(base), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled != 1 || s.NumberAvailable != 1 {
			return fmt.Errorf("its status is %+v", s)
		}
		pods, err := n.podsOf(ctx, base)
		if err == nil && len(pods) != 1 {
			err = fmt.Errorf("it has %d pods", len(pods))
		}
		return err
	})
}

// podsOf returns the node's pods of a DaemonSet.
func (n Node) podsOf(ctx context.Context, base string) ([]corev1.Pod, error) {
	list, err := n.c.client.CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + base + "," + labelNode + "=" + n.name})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", base, err)
	}
	return list.Items, nil
}

// AgentPods returns the pods of the node's agents.
func (n Node) AgentPods(ctx context.Context) ([]corev1.Pod, error) {
	return n.podsOf(ctx, agentSetName)
}

// describeSet returns why the pods of a DaemonSet wait, for an error message.
func (n Node) describeSet(base string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	pods, err := n.podsOf(ctx, base)
	if err != nil {
		return "\n" + err.Error()
	}
	var text strings.Builder
	for i := range pods {
		fmt.Fprintf(&text, "\npod %s is %s%s", pods[i].Name, describePod(&pods[i]), n.c.podEvents(&pods[i]))
	}
	return text.String()
}

// deleteSet deletes a DaemonSet of the node, and waits until its pods have ended.
func (n Node) deleteSet(ctx context.Context, base string) error {
	if err := n.removeSet(ctx, base); err != nil {
		return err
	}
	pods, err := n.podsOf(ctx, base)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := n.c.DeletePodAndWait(ctx, agentNamespace, pods[i].Name, -1); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) removeSet(ctx context.Context, base string) error {
	err := n.c.client.AppsV1().DaemonSets(agentNamespace).Delete(ctx, n.setName(base), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete DaemonSet %s: %w", n.setName(base), err)
	}
	return nil
}

// killSet stops the processes first, then deletes DaemonSet and pods, so that neither SIGTERM reaches a process nor the
// kubelet restarts it, and then kills the processes, also those that started after the first were listed.
func (n Node) killSet(ctx context.Context, base, container string) error {
	stopped, err := n.containersOf(ctx, agentNamespace, container)
	if err != nil {
		return err
	}
	for _, p := range stopped {
		if err := p.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop %s: %w", p.Name, err)
		}
	}
	if err := n.removeSet(ctx, base); err != nil {
		return err
	}
	pods, err := n.podsOf(ctx, base)
	if err != nil {
		return err
	}
	now := int64(0)
	for i := range pods {
		err := n.c.client.CoreV1().Pods(agentNamespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", pods[i].Name, err)
		}
	}
	for _, p := range stopped {
		if err := p.Stop(ctx, syscall.SIGKILL, 0); err != nil {
			return err
		}
	}
	return waitFor(ctx, "the end of "+base, nil, func(ctx context.Context) error {
		late, err := n.containersOf(ctx, agentNamespace, container)
		for _, p := range late {
			err = errors.Join(err, p.Stop(ctx, syscall.SIGKILL, 0), fmt.Errorf("process %d ran", p.PID))
		}
		return err
	})
}
