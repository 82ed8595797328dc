package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/node/kubelet"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxPodDirectories bounds how many pod directories are listed.
const maxPodDirectories = 100_000

// checkpoint reads the device manager's checkpoint and the device plugin's answers in it.
func (c *collector) checkpoint() {
	dir := cmp.Or(c.places.PluginRoot, c.places.KubeletDir)
	path := under(dir, kubelet.CheckpointFile)
	if dir == "" {
		c.unread(trace.Checkpoint, path, "no kubelet directory is configured")
		return
	}
	checkpoint, err := kubelet.ReadCheckpoint(dir)
	if err != nil {
		c.unread(trace.Checkpoint, path, why(err))
		return
	}
	source := trace.Source{Kind: trace.Checkpoint, Path: path}
	c.read(source)
	for _, a := range checkpoint.Assignments {
		ref := trace.Ref{UID: a.PodUID}
		c.local.Assignments = append(c.local.Assignments, trace.AssignmentFact{
			Source: source, Pod: ref, Container: a.Container, Resource: a.Resource, IDs: a.DeviceIDs,
		})
		answer := trace.Source{Kind: trace.AllocResp, Path: path}
		if a.Response == nil {
			c.unread(trace.AllocResp, path, fmt.Sprintf("pod %s, container %s, %s: %s", a.PodUID, a.Container, a.Resource, a.ResponseError))
			continue
		}
		c.local.Answers = append(c.local.Answers, answerFact(answer, ref, a.Container, a.Resource, a.Response))
	}
}

func answerFact(source trace.Source, ref trace.Ref, container, resource string,
	response *v1beta1.ContainerAllocateResponse) trace.AnswerFact {
	fact := trace.AnswerFact{
		Source: source, Pod: ref, Container: container, Resource: resource,
		Env: variables(response.GetEnvs()), Annotations: variables(response.GetAnnotations()),
	}
	for _, mount := range response.GetMounts() {
		fact.Mounts = append(fact.Mounts, trace.Mount{HostPath: mount.GetHostPath(), Path: mount.GetContainerPath()})
	}
	for _, device := range response.GetDevices() {
		fact.Nodes = append(fact.Nodes, trace.Node{Path: device.GetContainerPath(), Major: trace.Unknown, Minor: trace.Unknown})
	}
	for _, device := range response.GetCdiDevices() {
		fact.CDINames = append(fact.CDINames, device.GetName())
	}
	return fact
}

// maxGets bounds the requests to the kubelet, which allows 100 per second for all its clients together.
const maxGets = 20

// podResources reads, over the kubelet's socket, the pods that its checkpoint lists and whose names are known. The
// kubelet answers by name and not by UID, and leaves out init containers. List is not used: it would make the kubelet
// lose an allocation in progress.
func (c *collector) podResources(ctx context.Context) {
	path := under(c.places.KubeletDir, kubelet.PodResourcesSocket)
	if path == "" {
		c.unread(trace.PodResources, path, "no kubelet directory is configured")
		return
	}
	source := trace.Source{Kind: trace.PodResources, Path: path}
	client := kubelet.NewPodResources(c.places.KubeletDir)
	asked, left := 0, 0
	refs := c.assignedPods()
	if len(refs) == 0 {
		c.unread(trace.PodResources, path, "no name is known of the pods in the checkpoint")
		return
	}
	for _, ref := range refs {
		if asked == maxGets {
			left++
			continue
		}
		pod, err := client.Get(ctx, ref.Namespace, ref.Name)
		asked++
		if errors.Is(err, kubelet.ErrNoPod) {
			continue
		}
		if err != nil {
			c.unread(trace.PodResources, path, why(err))
			return
		}
		fact := trace.PodFact{Source: source, Ref: trace.Ref{Namespace: pod.Namespace, Name: pod.Name}, Node: c.local.Host}
		for _, container := range pod.Containers {
			fact.Containers = append(fact.Containers, trace.PodContainer{Name: container.Name})
			for _, devices := range merged(container.Devices) {
				c.local.Assignments = append(c.local.Assignments, trace.AssignmentFact{
					Source: source, Pod: fact.Ref, Container: container.Name, Resource: devices.Resource, IDs: devices.IDs,
				})
			}
		}
		c.local.Pods = append(c.local.Pods, fact)
	}
	c.read(source)
	if left > 0 {
		c.unread(trace.PodResources, path, fmt.Sprintf("%d more pods have devices; at most %d are read", left, maxGets))
	}
}

// assignedPods returns the names of the pods that the checkpoint lists, sorted, if a directory or a container provides
// the name.
func (c *collector) assignedPods() []trace.Ref {
	listed := map[string]bool{}
	for _, a := range c.local.Assignments {
		listed[a.Pod.UID] = true
	}
	var refs []trace.Ref
	if c.places.Pod.Name != "" {
		refs = append(refs, trace.Ref{Namespace: c.places.Pod.Namespace, Name: c.places.Pod.Name})
	}
	add := func(ref trace.Ref) {
		if listed[ref.UID] && ref.Name != "" {
			refs = append(refs, trace.Ref{Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	for _, pod := range c.local.Pods {
		add(pod.Ref)
	}
	for _, container := range c.local.Containers {
		add(container.Pod)
	}
	slices.SortFunc(refs, func(a, b trace.Ref) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(refs)
}

// merged joins the entries of one resource: the kubelet may report each device separately.
func merged(devices []kubelet.Devices) []kubelet.Devices {
	var out []kubelet.Devices
	for _, one := range devices {
		if n := len(out); n > 0 && out[n-1].Resource == one.Resource {
			out[n-1].IDs = append(out[n-1].IDs, one.IDs...)
			continue
		}
		one.IDs = append([]string(nil), one.IDs...)
		out = append(out, one)
	}
	return out
}

// podDirectories reads the names and UIDs of pods from the names of their log directories, NAMESPACE_NAME_UID. The
// directories outlive the pod for a while.
func (c *collector) podDirectories() {
	path := c.places.PodLogs
	if path == "" {
		c.unread(trace.Directory, path, "no directory of pod logs is configured")
		return
	}
	dir, err := os.Open(path)
	if err != nil {
		c.unread(trace.Directory, path, why(err))
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxPodDirectories)
	if err != nil && len(names) == 0 {
		names = nil // an empty directory returns io.EOF
	}
	source := trace.Source{Kind: trace.Directory, Path: path}
	c.read(source)
	for _, name := range names {
		parts := strings.Split(name, "_") // none of the three parts contains the separator
		if len(parts) == 3 {
			c.local.Pods = append(c.local.Pods, trace.PodFact{Source: source,
				Ref: trace.Ref{Namespace: parts[0], Name: parts[1], UID: parts[2]}})
		}
	}
}

// variables converts a map to a list, sorted by name.
func variables(m map[string]string) []trace.EnvVar {
	var list []trace.EnvVar
	for _, name := range sortedKeys(m) {
		list = append(list, trace.EnvVar{Name: name, Value: m[name]})
	}
	return list
}

// why formats an error as a reason; for a missing permission it adds the fix.
func why(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return err.Error() + " (run as root)"
	}
	return err.Error()
}
