package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// poll is how often the helpers below look again.
const poll = 50 * time.Millisecond

// CreatePod creates a pod, in the namespace "default" unless it names another.
func (c *Cluster) CreatePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	ns := pod.Namespace
	if ns == "" {
		ns = metav1.NamespaceDefault
	}
	made, err := c.client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s/%s: %w", ns, pod.Name, err)
	}
	return made, nil
}

// WaitPhase waits until the pod is in the phase. It gives up early when the
// pod has ended in another one, and says then, as at a timeout, why.
func (c *Cluster) WaitPhase(ctx context.Context, ns, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	var pod *corev1.Pod
	for {
		got, err := c.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			pod = got
			if pod.Status.Phase == phase {
				return pod, nil
			}
			if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				return pod, fmt.Errorf("wait for pod %s/%s to be %s: it is %s", ns, name, phase, describePod(pod))
			}
		}
		select {
		case <-ctx.Done():
			why := fmt.Sprint(err)
			if pod != nil {
				why = describePod(pod) + c.podEvents(pod)
			}
			return pod, fmt.Errorf("wait for pod %s/%s to be %s: %w; it is %s", ns, name, phase, ctx.Err(), why)
		case <-time.After(poll):
		}
	}
}

func describePod(pod *corev1.Pod) string {
	var b bytes.Buffer
	fmt.Fprint(&b, pod.Status.Phase)
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		fmt.Fprintf(&b, " (%s: %s)", pod.Status.Reason, pod.Status.Message)
	}
	for _, cond := range pod.Status.Conditions {
		if cond.Status != corev1.ConditionTrue && cond.Message != "" {
			fmt.Fprintf(&b, "; not %s: %s", cond.Type, cond.Message)
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			fmt.Fprintf(&b, "; container %s waits: %s %s", s.Name, w.Reason, w.Message)
		}
		if t := s.State.Terminated; t != nil {
			fmt.Fprintf(&b, "; container %s ended: %s, exit code %d %s", s.Name, t.Reason, t.ExitCode, t.Message)
		}
	}
	return b.String()
}

func (c *Cluster) podEvents(pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	events, err := c.client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return ""
	}
	var b bytes.Buffer
	for _, e := range events.Items {
		fmt.Fprintf(&b, "\n  event %s: %s", e.Reason, e.Message)
	}
	return b.String()
}

// DeletePodAndWait deletes a pod and waits until it is gone from the API,
// which is after its containers have ended. grace is in seconds; -1 takes the
// pod's own.
func (c *Cluster) DeletePodAndWait(ctx context.Context, ns, name string, grace int64) error {
	opts := metav1.DeleteOptions{}
	if grace >= 0 {
		opts.GracePeriodSeconds = &grace
	}
	pods := c.client.CoreV1().Pods(ns)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", ns, name, err)
	}
	if err := pods.Delete(ctx, name, opts); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", ns, name, err)
	}
	for {
		got, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && got.UID != pod.UID {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until pod %s/%s is gone: %w", ns, name, errors.Join(ctx.Err(), err))
		case <-time.After(poll):
		}
	}
}

// ExecInPod runs a command in a container as kubectl exec does.
func (c *Cluster) ExecInPod(ctx context.Context, ns, pod, container string, cmd ...string) (stdout, stderr string, err error) {
	req := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: cmd, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	exec, err := remotecommand.NewWebSocketExecutor(c.config, "GET", req.URL().String())
	if err != nil {
		return "", "", fmt.Errorf("exec in pod %s/%s: %w", ns, pod, err)
	}
	var out, errOut bytes.Buffer
	if err := exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}); err != nil {
		return out.String(), errOut.String(), fmt.Errorf("exec %v in pod %s/%s: %w: %s", cmd, ns, pod, err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), errOut.String(), nil
}

// PodLogs returns what a container has printed.
func (c *Cluster) PodLogs(ctx context.Context, ns, pod, container string) (string, error) {
	data, err := c.client.CoreV1().Pods(ns).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read logs of pod %s/%s: %w", ns, pod, err)
	}
	return string(data), nil
}

// ImportImage gives an image to every node that runs containers.
func (c *Cluster) ImportImage(ctx context.Context, tarball string) error {
	for _, n := range c.Nodes() {
		if n.Hollow() {
			continue
		}
		if err := n.ImportImage(ctx, tarball); err != nil {
			return err
		}
	}
	return nil
}
