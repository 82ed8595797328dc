package agent

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/node/agent/healthsync"
	"github.com/berth-gpu/berth/internal/node/agent/labelsync"
	"github.com/berth-gpu/berth/internal/node/agent/migsync"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/gpunode"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/signal"
)

// wireAPI makes the workers that write to the API, and the actors that tell them what to write.
func (a *Agent) wireAPI() error {
	log := a.log.With("component", "nodeapi")
	report := func(source, code string) func(error) {
		return func(err error) { a.problemList.SetError(source, code, err) }
	}
	condition, taint := func(nodeapi.NodeCondition) {}, func(bool) {}
	if a.client != nil {
		a.condition = nodeapi.NewNodeCondition(a.client, a.retry, report("node-condition", "NODE_CONDITION"), log)
		a.taint = nodeapi.NewNodeTaint(a.client, a.retry, report("node-taint", "NODE_CONDITION"), log)
		a.migState = nodeapi.NewMIGState(a.client, configwatch.LabelMIGState, a.retry, report("mig-state-label", "NODE_LABEL"), log)
		condition, taint = a.condition.Publish, a.taint.Publish
		object := gpunode.NewObject(a.client, a.config.NodeName)
		a.gpuNode = nodeapi.NewPublisher(nodeapi.PublisherDeps[*v1alpha1.GPUNode]{
			Read: object.Read, Write: object.Write, Equal: gpunode.Equal, Report: report("gpunode", "GPUNODE_WRITE"), Retry: a.retry, Log: log,
		})
	}
	a.health = healthsync.New(healthsync.Deps{
		Hardware: a.inventory, Holders: a.holdersOf, Event: a.events.Publish,
		Condition: condition, Taint: taint, TaintUnhealthy: a.config.TaintUnhealthy,
	})
	places, err := labelsync.PlacesOf(a.config, a.client)
	if err != nil {
		return err
	}
	labels := labelsync.Deps{
		Places: places, Hardware: a.inventory.Current, Facts: a.labelFacts,
		Changed: []func() *signal.Subscription{a.inventory.Subscribe, a.allocatable.SubscribeUse, a.watch.Subscribe, a.partitioned.Subscribe},
		Sys:     a.sys, Report: report("labels", "LABELS"), Retry: a.retry, Log: a.log.With("component", "labelsync"),
	}
	if !a.config.Labels.NoTimestamp {
		labels.Timestamp = a.began
	}
	a.labels = labelsync.New(labels)
	return nil
}

// labelFacts are what the labels depend on besides the hardware.
func (a *Agent) labelFacts() labelsync.Facts {
	config := a.watch.Current().Config
	return labelsync.Facts{
		Units: a.allocatable.Units(), ResourceName: config.ResourceName, MIGStrategy: string(config.MIGStrategy),
		Changing: slices.ContainsFunc(a.partition.Statuses(), func(s migapply.Status) bool { return s.State == migapply.Changing }),
	}
}

// ensureDefinition installs the CRD until it is there or may not be.
func (a *Agent) ensureDefinition(ctx context.Context) error {
	return a.retry.Do(ctx, func(ctx context.Context) (done bool) {
		err := gpunode.EnsureDefinition(ctx, a.client, a.log)
		a.problemList.SetError("definition", "GPUNODE_DEFINITION", err)
		return err == nil || errors.Is(err, gpunode.ErrNotPermitted)
	})
}

// migNode shows in the API how far the MIG layouts are; it implements migsync.Node.
type migNode struct{ agent *Agent }

// SetMIGState implements migsync.Node. It waits a moment for the API server only before a change: until the label says that
// the change is pending, its old value could be taken for the outcome. The publisher reports errors, and retries.
func (n migNode) SetMIGState(ctx context.Context, state string) {
	switch {
	case n.agent.migState == nil: // A standalone agent has no Node.
	case state == migsync.StatePending:
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_ = n.agent.migState.PublishAndWait(ctx, state)
	default:
		n.agent.migState.Publish(state)
	}
}

// SetMIGCondition implements migsync.Node.
func (n migNode) SetMIGCondition(status metav1.ConditionStatus, reason, message string) {
	if status == "" {
		n.agent.conditions.Clear(nodeapi.ConditionMIG)
		return
	}
	n.agent.conditions.Set(nodeapi.ConditionMIG, status, reason, message)
}

// RemoveLabels removes the labels about the GPUs from every place that they may be in; api may be nil.
func RemoveLabels(ctx context.Context, config *v1alpha1.AgentConfig, api dynamic.Interface) error {
	places, err := labelsync.PlacesOf(config, api)
	if err != nil {
		return err
	}
	return places.Remove(ctx)
}
