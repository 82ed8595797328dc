package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// acceptPods asks for pods in the binary form, which takes a fraction of the time to decode.
const acceptPods = "application/vnd.kubernetes.protobuf,application/json"

// EachPod calls visit with every pod of the cluster. It lists them once, in pages.
func (a API) EachPod(ctx context.Context, visit func(*corev1.Pod)) error {
	further := ""
	for {
		request := a.REST.Get().AbsPath("/api/v1/pods").Param("limit", strconv.Itoa(listLimit)).SetHeader("Accept", acceptPods)
		if further != "" {
			request.Param("continue", further)
		}
		answer, err := request.Do(ctx).Get()
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		list, ok := answer.(*corev1.PodList)
		if !ok {
			return fmt.Errorf("list pods: the API server answers with a %T", answer)
		}
		for i := range list.Items {
			visit(&list.Items[i])
		}
		if further = list.Continue; further == "" {
			return nil
		}
	}
}

// ListGPUNodes reads all GPUNode objects with one request.
func (a API) ListGPUNodes(ctx context.Context) ([]v1alpha1.GPUNode, error) {
	list := &v1alpha1.GPUNodeList{}
	text, err := raw(a.REST.Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.GPUNodeResource).Do(ctx))
	if err == nil {
		err = json.Unmarshal(text, list)
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GPUNodes adds what all GPUNode objects contain to the evidence about a device, a UUID or the beginning of one.
func (a API) GPUNodes(ctx context.Context, e *trace.Evidence, device gpu.UUID) error {
	nodes, err := a.ListGPUNodes(ctx)
	if err != nil {
		e.Unread = append(e.Unread, trace.Unread{Source: trace.Source{Kind: trace.GPUNode,
			Path: v1alpha1.GPUNodeResource}, Why: gpuNodeReason(err)})
		return err
	}
	for i := range nodes {
		a.addGPUNode(e, &nodes[i], device)
	}
	return nil
}
