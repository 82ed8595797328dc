package agent

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// RemoveLabels removes the labels about the GPUs from every place that they may be in; api may be nil.
func RemoveLabels(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface) error {
	chosen, others, err := labelWriters(config, labelPlaces(config, api))
	if err != nil {
		return err
	}
	if chosen != nil {
		others = append(others, chosen)
	}
	var failed []error
	for _, writer := range others {
		left, err := writer.Read(ctx)
		if err != nil || len(left) == 0 {
			continue // Without Node Feature Discovery its places cannot even be read.
		}
		if err := writer.Remove(ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", writer.Place(), err))
		}
	}
	return errors.Join(failed...)
}

// RemoveMIGState removes the label mig.config.state from a Node if the agent has written it; mig-manager's stays.
func RemoveMIGState(ctx context.Context, api dynamic.Interface, name string) error {
	// An apply to a Node that does not exist would create it.
	_, err := api.Resource(nodes()).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		err = applyMIGState(ctx, api, name, "")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// TaintUnhealthy is the key of the taint that RemoveHealth removes.
const TaintUnhealthy = taintUnhealthy

// RemoveHealth removes the condition and the taint of the agent from a Node.
func RemoveHealth(ctx context.Context, api dynamic.Interface, name string) error {
	return removeHealth(ctx, api, name)
}
