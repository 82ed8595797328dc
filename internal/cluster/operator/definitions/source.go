package definitions

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Resources says what the API server serves; a discovery client is one.
type Resources interface {
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// The times between two questions whether a kind is served: while it is not, and after an error.
const (
	servedInterval = time.Minute
	errorInterval  = 5 * time.Second
)

type queue = workqueue.TypedRateLimitingInterface[request]

// whenServed is the source of requests for a kind that the API server may not serve: when it does, all objects are to be reconciled, and
// the watch starts.
type whenServed struct {
	kind      kind
	names     []string
	watch     source.TypedSource[request]
	resources Resources
	clock     clock.Clock
	log       *slog.Logger
}

var _ source.TypedSource[request] = whenServed{}

// Start waits in the background.
func (s whenServed) Start(ctx context.Context, q queue) error {
	go s.run(ctx, q)
	return nil
}

func (s whenServed) run(ctx context.Context, q queue) {
	log, said := s.log.With("kind", s.kind.Kind, "version", s.kind.GroupVersion().String()), time.Duration(0)
	for {
		served, err := s.served()
		if served {
			// The watch comes first: what changes after the requests are done wakes the controller.
			if err = s.watch.Start(ctx, q); err == nil {
				for _, name := range s.names {
					q.Add(request{name: name})
				}
				return
			}
		}
		wait := servedInterval
		if err != nil {
			wait = errorInterval
		}
		switch {
		case wait == said: // Each state is one line.
		case err != nil:
			log.Warn("Cannot find out whether the API server serves this kind", "err", err)
		default:
			log.Info("The API server does not serve this kind; asking again every minute")
		}
		said = wait
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(wait):
		}
	}
}

// served asks the API server.
func (s whenServed) served() (bool, error) {
	list, err := s.resources.ServerResourcesForGroupVersion(s.kind.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the resources of %s: %w", s.kind.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == s.kind.resource }), nil
}

// wake requests the objects of which the watch reports a change. Others that carry Berth's label are of no concern.
func wake(all map[string]wanted) handler.TypedEventHandler[*metav1.PartialObjectMetadata, request] {
	// An object that lost the label is reported as deleted.
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, object *metav1.PartialObjectMetadata) []request {
		if _, ok := all[object.Name]; ok {
			return []request{{name: object.Name}}
		}
		return nil
	})
}

func sortedNames(all map[string]wanted) []string { return slices.Sorted(maps.Keys(all)) }
