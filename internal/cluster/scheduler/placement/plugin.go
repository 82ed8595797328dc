package placement

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the name of the plugin in a KubeSchedulerConfiguration.
const Name = "BerthPlacement"

// Plugin scores nodes by the GPUs that a pod would get.
type Plugin struct{ handle fwk.Handle }

var _ fwk.ScorePlugin = (*Plugin)(nil)

// New returns the plugin of a profile.
func New(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if handle == nil {
		return nil, errors.New("make the plugin BerthPlacement: no handle of the framework")
	}
	return &Plugin{handle: handle}, nil
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// Score scores a node.
func (p *Plugin) Score(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	return 0, nil
}

// ScoreExtensions returns nil: the scores need no normalization.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }
