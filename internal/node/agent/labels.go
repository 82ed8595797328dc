package agent

import (
	"context"
	"os"
	"slices"

	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/labels"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// namespaceFile is where a pod reads its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// labelWriters are the places for labels that the agent can reach: the chosen one, and
// those that an earlier choice may have left labels in.
func labelWriters(config *v1alpha1.AgentConfig, places labels.Places) (chosen labels.Writer, others []labels.Writer, err error) {
	for _, output := range []labels.Output{labels.OutputNode, labels.OutputFile, labels.OutputNodeFeature} {
		if output != labels.OutputFile && places.Client == nil {
			continue
		}
		writer, err := labels.NewWriter(output, places)
		if err != nil {
			return nil, nil, err
		}
		if string(output) == string(config.Labels.Output) {
			chosen = writer
		} else {
			others = append(others, writer)
		}
	}
	return chosen, others, nil
}

// labelPlaces are the places of a node's labels.
func labelPlaces(config *v1alpha1.AgentConfig, api dynamic.Interface) labels.Places {
	namespace := "berth-system"
	if text, err := os.ReadFile(namespaceFile); err == nil {
		namespace = string(text)
	}
	return labels.Places{Client: api, NodeName: config.NodeName, Namespace: namespace, Dir: config.Labels.Dir}
}

// label keeps the labels about the node's GPUs until ctx ends. Nothing is removed then.
func (a *Agent) label(ctx context.Context) error {
	for _, writer := range a.staleLabels {
		left, err := writer.Read(ctx)
		if err == nil && len(left) > 0 {
			err = writer.Remove(ctx)
		}
		// Where a place cannot even be read, as without Node Feature Discovery, nothing was left.
		if err != nil && ctx.Err() == nil {
			a.log.Debug("labels of an earlier choice were not looked for", "place", writer.Place(), "error", err)
		}
	}
	if a.labels == nil {
		return nil
	}
	return a.labels.Run(ctx)
}

// publishLabels hands the labels to their publisher. While a card is being partitioned
// anew, or no driver answers, the last ones stand; without cards there are none.
func (a *Agent) publishLabels(snapshot *gpu.Snapshot) {
	if a.labels == nil || len(snapshot.GPUs) == 0 && !snapshot.Driver.Present() {
		return
	}
	changing := func(s migapply.Status) bool { return s.State == migapply.Changing }
	if slices.ContainsFunc(a.partition.Statuses(), changing) {
		return
	}
	cards := make([]gpu.PCIAddress, len(snapshot.GPUs))
	for i := range snapshot.GPUs {
		cards[i] = snapshot.GPUs[i].PCI
	}
	if a.hostFacts == nil || !slices.Equal(cards, a.hostCards) {
		facts := labels.ReadHost(a.sys, snapshot)
		a.hostFacts, a.hostCards = &facts, cards
	}
	now := a.watch.Current().Config
	in := labels.Input{
		Snapshot: snapshot, Units: a.allocatable.Units(), ResourceName: now.ResourceName,
		MIGStrategy: string(now.MIGStrategy), Host: *a.hostFacts,
	}
	if !a.config.Labels.NoTimestamp {
		in.Timestamp = a.began
	}
	a.labels.Publish(labels.Build(in))
	a.problemList.SetError("labels", "LABELS", a.labels.Err())
}
