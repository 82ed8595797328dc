package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-gpu/berth/hack/images/image"
)

// poll is the polling interval of the helpers below.
const poll = 150 * time.Millisecond

// CreatePod creates a pod, in the namespace "default" unless it specifies another.
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

// DeletePodAndWait deletes a pod and waits until the API no longer has it, which is after its containers have ended.
// grace is in seconds; -1 uses the pod's own.
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

// ForwardPort forwards a port of this machine to one of a pod's loopback address until ctx ends, as kubectl port-forward does. It returns
// the address on this machine.
func (c *Cluster) ForwardPort(ctx context.Context, ns, pod string, port int) (string, error) {
	address := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource("portforward").URL()
	dialer, err := portforward.NewSPDYOverWebsocketDialer(address, c.config)
	if err != nil {
		return "", fmt.Errorf("forward a port to pod %s/%s: %w", ns, pod, err)
	}
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return "", fmt.Errorf("forward a port to pod %s/%s: %w", ns, pod, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return "", fmt.Errorf("forward a port to pod %s/%s: %w", ns, pod, err)
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return "", fmt.Errorf("forward a port to pod %s/%s: %w", ns, pod, err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), nil
}

// PodLogs returns what a container has printed.
func (c *Cluster) PodLogs(ctx context.Context, ns, pod, container string) (string, error) {
	data, err := c.client.CoreV1().Pods(ns).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read logs of pod %s/%s: %w", ns, pod, err)
	}
	return string(data), nil
}

// ImportImage imports an image into every node that runs containers.
func (c *Cluster) ImportImage(ctx context.Context, img image.Named) error {
	for _, n := range c.Nodes() {
		if n.Hollow() {
			continue
		}
		if err := n.ImportImage(ctx, img); err != nil {
			return err
		}
	}
	return nil
}
