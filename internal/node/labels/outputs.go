package labels

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

const (
	// namespaceFile is where a pod reads its namespace; without it, defaultNamespace counts.
	namespaceFile    = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	defaultNamespace = "berth-system"
)

// Outputs are the places for labels that the agent can reach.
type Outputs struct {
	// Chosen is nil where no labels are wanted.
	Chosen Writer
	// Others are those in which an earlier choice may have left labels.
	Others []Writer
}

// OutputsOf returns the places under a configuration; api is nil without an API server.
func OutputsOf(config *v1alpha1.AgentConfig, api dynamic.Interface) (Outputs, error) {
	namespace := defaultNamespace
	if text, err := os.ReadFile(namespaceFile); err == nil {
		namespace = string(text)
	}
	all := Places{Client: api, NodeName: config.NodeName, Namespace: namespace, Dir: config.Labels.Dir}
	var places Outputs
	for _, output := range []Output{OutputNode, OutputFile, OutputNodeFeature} {
		if output != OutputFile && api == nil {
			continue
		}
		writer, err := NewWriter(output, all)
		if err != nil {
			return Outputs{}, err
		}
		if string(output) == string(config.Labels.Output) {
			places.Chosen = writer
		} else {
			places.Others = append(places.Others, writer)
		}
	}
	return places, nil
}

// removeStale removes labels that an earlier choice left in another place.
func (p Outputs) removeStale(ctx context.Context, log *slog.Logger) {
	for _, writer := range p.Others {
		left, err := writer.Read(ctx)
		if err == nil && len(left) > 0 {
			err = writer.Remove(ctx)
		}
		// A place that cannot be read, as without Node Feature Discovery, has no labels.
		if err != nil && ctx.Err() == nil {
			log.Debug("Could not remove labels of an earlier output", "place", writer.Place(), "error", err)
		}
	}
}

// Remove removes the labels about the GPUs from every place that they may be in.
func (p Outputs) Remove(ctx context.Context) error {
	all := p.Others
	if p.Chosen != nil {
		all = append(all, p.Chosen)
	}
	var failed []error
	for _, writer := range all {
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
