package publish

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// Remove deletes the ResourceSlices of a driver on a node, for an uninstall. It is no error when there are none, when the API server
// does not have the API, or when the agents of this cluster have no rights for it and so have published none.
func Remove(ctx context.Context, client kubernetes.Interface, driver, node string) error {
	slices := client.ResourceV1().ResourceSlices()
	list, err := slices.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorDriver: driver, resourceapi.ResourceSliceSelectorNodeName: node,
	}.String()})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	var errs []error
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.Driver != driver || spec.NodeName == nil || *spec.NodeName != node {
			continue
		}
		if err := slices.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete ResourceSlice %s: %w", list.Items[i].Name, err))
		}
	}
	return errors.Join(errs...)
}
