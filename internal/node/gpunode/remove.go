package gpunode

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// Remove deletes the GPUNode of a node. It is no error when there is none.
func Remove(ctx context.Context, api dynamic.Interface, node string) error {
	err := api.Resource(v1alpha1.GPUNodes()).Delete(ctx, node, metav1.DeleteOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete GPUNode %s: %w", node, err)
}
