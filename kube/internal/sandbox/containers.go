package sandbox

import (
	"context"
	"fmt"
	"slices"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The labels that containerd's CRI plugin copies from the kubelet's request to a container.
const (
	labelContainer = "io.kubernetes.container.name"
	labelPod       = "io.kubernetes.pod.name"
	labelNamespace = "io.kubernetes.pod.namespace"
)

// containersOf returns the first processes of the node's running containers of this name, oldest first, each with the
// name of its pod. It asks containerd, which knows them also while the API server is away.
func (n Node) containersOf(ctx context.Context, namespace, container string) ([]Process, error) {
	conn, err := n.dialContainerd()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace)
	list, err := containersapi.NewContainersClient(conn).List(ctx, &containersapi.ListContainersRequest{
		Filters: []string{fmt.Sprintf("labels.%q==%q,labels.%q==%q", labelContainer, container, labelNamespace, namespace)},
	})
	if err != nil {
		return nil, fmt.Errorf("list containers of %s: %w", n.name, err)
	}
	slices.SortFunc(list.Containers, func(a, b *containersapi.Container) int {
		return a.CreatedAt.AsTime().Compare(b.CreatedAt.AsTime())
	})
	var out []Process
	for _, c := range list.Containers {
		got, err := tasksapi.NewTasksClient(conn).Get(ctx, &tasksapi.GetRequest{ContainerID: c.ID})
		if status.Code(err) == codes.NotFound {
			continue // not started yet, or ended
		}
		if err != nil {
			return nil, fmt.Errorf("read container %s of %s: %w", c.ID, n.name, err)
		}
		p := Process{Name: c.Labels[labelPod], Node: n.name, PID: int(got.Process.Pid)}
		if got.Process.Status != task.Status_RUNNING {
			continue
		}
		if p.StartTime, err = startTime(p.PID); err == nil { // an error means that it has ended since
			out = append(out, p)
		}
	}
	return out, nil
}
