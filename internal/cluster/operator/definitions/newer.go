package definitions

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-gpu/berth/api/crds"
)

// NewerError says that the cluster has a definition of a newer Berth than this operator.
type NewerError struct {
	// Name is the name of the CustomResourceDefinition.
	Name string
	// Cluster and Embedded are the schema versions of the cluster's definition and of the operator's.
	Cluster  int
	Embedded int
}

// Error says how to go on.
func (e *NewerError) Error() string {
	return fmt.Sprintf("CustomResourceDefinition %s in the cluster has schema version %d, and this berth-operator has version %d: a newer Berth wrote it, "+
		"and an older definition would drop fields of the objects that are stored. Nothing was changed. "+
		"Fix: run at least the version of Berth that wrote it (helm upgrade, or helm rollback to that release); "+
		"or, when its objects are not needed, delete the definition with all of them: kubectl delete customresourcedefinition %s",
		e.Name, e.Cluster, e.Embedded, e.Name)
}

// newer returns a [NewerError] for a definition that is newer than the embedded one.
func newer(live, embedded client.Object) error {
	have, own := crds.Version(live.GetAnnotations()), crds.Version(embedded.GetAnnotations())
	if have <= own {
		return nil
	}
	return &NewerError{Name: embedded.GetName(), Cluster: have, Embedded: own}
}

// Check returns a [NewerError] when the cluster has a definition that is newer than the embedded one. It writes nothing.
func Check(ctx context.Context, reader client.Reader) error {
	k := definitionKind()
	all, err := embedded(k)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(k.GroupVersionKind)
		err := reader.Get(ctx, client.ObjectKey{Name: name}, live)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return explained("read", k, name, err)
		}
		if err := newer(live, all[name].object); err != nil {
			return err
		}
	}
	return nil
}

// explained adds to an error what failed, and to a refused request which right is missing.
func explained(verb string, k kind, name string, err error) error {
	err = fmt.Errorf("%s %s %s: %w", verb, k.Kind, name, err)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; fix: give the operator's service account this verb on %s.%s, as docs/architecture.md lists it", err, k.resource, k.Group)
	}
	return err
}
