package agent

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/agent/mpssync"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
)

const (
	// migInterval is the time between two looks while a card waits or has failed.
	migInterval = time.Second
	// layoutStep is the time between two looks at whether it is known.
	layoutStep = 20 * time.Millisecond
	// migFieldManager owns the label nvidia.com/mig.config.state; those about the GPUs have another one.
	migFieldManager = "berth-agent-mig"
)

// The values of the label nvidia.com/mig.config.state, as mig-manager writes them.
const (
	migSuccess = "success"
	migPending = "pending"
	migFailed  = "failed"
)

// repartition keeps the cards partitioned as the Node's label or the configuration wants,
// until ctx ends. It is the only one that asks the partition for anything.
func (a *Agent) repartition(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.compared: // Before, it is not known who holds what.
	}
	hardware := a.inventory.Subscribe()
	defer hardware.Close()
	holdings := a.ledger.Subscribe()
	defer holdings.Close()
	written := ""
	var asked []migapply.Want
	for {
		wants, problem := a.migWants()
		a.problemList.Set("mig-layout", problem...)
		// Said before the first change, so that nobody takes the layout before for this one. What has
		// failed stays failed until something else is wanted.
		due := a.watch.Current().MIG.Layout != "" && a.differs(wants) && (written != migFailed || !reflect.DeepEqual(wants, asked))
		if due && written != migPending && a.writeMIGState(ctx, migPending) {
			written = migPending
		}
		asked = wants
		statuses := a.partition.Reconcile(ctx, wants)
		a.problemList.Set("mig-journal", a.partition.Faults()...)
		a.noteMIG(statuses, problem)
		a.allocatable.Settle()
		a.mps.Unquiesce(mpssync.ForMIG)
		state, known := a.migState(statuses, problem)
		if known && state != written && a.writeMIGState(ctx, state) {
			written = state
		}
		var again <-chan time.Time
		if state != written || slices.ContainsFunc(statuses, func(s migapply.Status) bool { return s.State != migapply.Applied }) {
			again = a.clock.After(migInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-hardware.C():
		case <-holdings.C():
		case <-a.relayout:
		case <-again:
		}
	}
}

// migWants is what the cards are to be: by the layout of the Node's label those that it
// names, by the rules of the configuration the others. Excluded cards are left alone.
func (a *Agent) migWants() ([]migapply.Want, []gpu.Cause) {
	now := a.watch.Current()
	if !now.MIG.Known || now.Waiting {
		return nil, nil
	}
	snapshot := a.inventory.Current()
	var cards []mig.GPU
	for i := range snapshot.GPUs {
		cards = append(cards, mig.GPUOf(&snapshot.GPUs[i], nobody))
	}
	layouts := a.layouts(cards, now)
	var problems []gpu.Cause
	if now.MIG.Err != nil {
		problems = append(problems, gpu.Cause{Code: "MIG_LAYOUTS_REFUSED", Message: now.MIG.Err.Error()})
	}
	refuse := func(err error) {
		problems = append(problems, gpu.Cause{Code: "MIG_LAYOUT_UNKNOWN", Message: err.Error()})
	}
	find := func(name string) (mig.Layout, error) {
		if now.MIG.Unread {
			// The hardware may have a layout of the same name that is another one.
			return mig.Layout{}, fmt.Errorf("layout %s is not known: no good content of ConfigMap %s was read yet", name, now.Config.MIGConfigMap)
		}
		return mig.FindLayout(layouts, name)
	}
	var labelled mig.Layout
	if name := now.MIG.Layout; name != "" {
		var err error
		if labelled, err = find(name); err != nil {
			refuse(fmt.Errorf("label %s=%s: %w", configwatch.LabelMIG, name, err))
			return nil, problems // Which GPUs it is for is not known: none is changed.
		}
	}
	deciding := offer.DecidingRules(snapshot, config.OfferSettings(now.Config).GPUs)
	var wants []migapply.Want
	for _, card := range cards {
		rule := v1alpha1.GPURule{}
		if i, ok := deciding[card.UUID]; ok {
			rule = now.Config.GPUs[i]
		}
		if rule.Exclude || card.UUID == "" {
			continue
		}
		if wanted, ok := labelled.Wanted(card); ok {
			wants = append(wants, migapply.Want{UUID: card.UUID, Wanted: wanted, Source: fmt.Sprintf("layout %s of label %s", now.MIG.Layout, configwatch.LabelMIG)})
			continue
		}
		if rule.MIG == nil {
			continue
		}
		source := fmt.Sprintf("gpus[%d].mig of the configuration", deciding[card.UUID])
		if rule.MIG.Layout == "" {
			wants = append(wants, migapply.Want{UUID: card.UUID, Wanted: mig.Wanted{Enabled: true, Devices: rule.MIG.Devices}, Source: source})
			continue
		}
		layout, err := find(rule.MIG.Layout)
		if err != nil {
			refuse(fmt.Errorf("%s: %w", source, err))
			continue
		}
		if wanted, ok := layout.Wanted(card); ok {
			wants = append(wants, migapply.Want{UUID: card.UUID, Wanted: wanted, Source: "layout " + rule.MIG.Layout + " of " + source})
		}
	}
	return wants, problems
}

// changing are the cards whose MIG mode is to change, with the reason. A card is among them as
// soon as that is wanted, not only when the partition takes it up: in between, at a start
// above all, somebody could be given the card that is about to be partitioned.
func (a *Agent) changing(snapshot *gpu.Snapshot) map[gpu.UUID]string {
	statuses := a.partition.Statuses()
	changing := migapply.Pending(statuses)
	wants, _ := a.migWants()
	for _, want := range wants {
		card := snapshot.GPU(want.UUID)
		given := slices.ContainsFunc(statuses, func(s migapply.Status) bool {
			return s.UUID == want.UUID && (s.State == migapply.Failed || s.State == migapply.Refused)
		})
		if card == nil || given || changing[want.UUID] != "" {
			continue
		}
		if plan := mig.PlanGPU(mig.GPUOf(card, nobody), want.Wanted); plan.Refused == "" && plan.SetMode != nil {
			changing[want.UUID] = "its MIG mode is about to change for " + want.Source
		}
	}
	return changing
}

// awaitLayout waits a moment for the Node's label where nothing is in force yet, as after a
// reboot. That leaves some cards without their MIG mode, and before the label is known they would
// be given out whole. A label that is remembered from before is waited for however long: it counts when the API
// stays away.
func (a *Agent) awaitLayout(ctx context.Context) {
	enough := a.clock.After(configwatch.Patience)
	for len(a.allocatable.Units()) == 0 {
		if mig := a.watch.Current().MIG; mig.Known || enough == nil && !mig.Remembered {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-enough:
			enough = nil
		case <-a.clock.After(layoutStep):
		}
	}
}

// differs tells whether a card is not as it is wanted.
func (a *Agent) differs(wants []migapply.Want) bool {
	snapshot := a.inventory.Current()
	return slices.ContainsFunc(wants, func(want migapply.Want) bool {
		card := snapshot.GPU(want.UUID)
		if card == nil {
			return true
		}
		plan := mig.PlanGPU(mig.GPUOf(card, nobody), want.Wanted)
		return plan.Changes()
	})
}

// nobody stands for the holders where they do not matter.
func nobody(gpu.DeviceKey) []string { return nil }

// layouts are all that have a name here: those of the hardware, over them the
// configuration's, over them the ConfigMap's.
func (a *Agent) layouts(cards []mig.GPU, now configwatch.State) map[string]mig.Layout {
	layouts := mig.HardwareLayouts(cards)
	for _, from := range []map[string][]v1alpha1.MIGLayoutEntry{now.Config.MIGLayouts, now.MIG.Layouts} {
		for name, entries := range from {
			layouts[name] = config.Layout(entries)
		}
	}
	return layouts
}

// migState is what the label of the Node is to say; empty when nobody asks by label, and
// not known before the Node was read.
func (a *Agent) migState(statuses []migapply.Status, problems []gpu.Cause) (state string, known bool) {
	now := a.watch.Current()
	if !now.MIG.Known || a.api == nil {
		return "", false
	}
	if now.MIG.Layout == "" {
		return "", true
	}
	if len(problems) > 0 {
		return migFailed, true
	}
	state = migSuccess
	for _, s := range statuses {
		switch s.State {
		case migapply.Failed, migapply.Refused:
			return migFailed, true
		case migapply.Applied:
		default:
			state = migPending
		}
	}
	return state, true
}

// writeMIGState applies the label; an empty state takes it away again, if it is ours.
func (a *Agent) writeMIGState(ctx context.Context, state string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := applyMIGState(ctx, a.api, a.config.NodeName, state)
	if err != nil {
		err = fmt.Errorf("write label %s of the node: %w", configwatch.LabelMIGState, err)
	}
	a.problemList.SetError("mig-state", "NODE_LABEL", err)
	return err == nil
}

// applyMIGState writes the label to the Node, or removes it when the state is empty.
func applyMIGState(ctx context.Context, api dynamic.Interface, name, state string) error {
	labels := map[string]any{}
	if state != "" {
		labels[configwatch.LabelMIGState] = state
	}
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "labels": labels},
	}}
	_, err := api.Resource(nodes()).Apply(ctx, name, node, metav1.ApplyOptions{FieldManager: migFieldManager, Force: true})
	return err
}

// noteMIG tells condition, events and log how far the cards are.
func (a *Agent) noteMIG(statuses []migapply.Status, problems []gpu.Cause) {
	var failed, waiting []string
	for _, problem := range problems {
		failed = append(failed, problem.Message)
	}
	var causes []gpu.Cause
	for _, s := range statuses {
		switch s.State {
		case migapply.Failed, migapply.Refused:
			failed = append(failed, s.Message)
			causes = append(causes, gpu.Cause{Code: "MIG_" + strings.ToUpper(string(s.State)), Message: s.Message})
		case migapply.Waiting, migapply.Changing:
			waiting = append(waiting, s.Message)
		}
	}
	a.problemList.Set("mig", causes...)
	switch {
	case len(failed) > 0:
		a.conditions.Set(nodeapi.ConditionMIG, metav1.ConditionFalse, "Failed", strings.Join(failed, "; "))
	case len(waiting) > 0:
		a.conditions.Set(nodeapi.ConditionMIG, metav1.ConditionFalse, "Waiting", strings.Join(waiting, "; "))
	case len(statuses) > 0:
		a.conditions.Set(nodeapi.ConditionMIG, metav1.ConditionTrue, "Applied", "every card is partitioned as it is wanted")
	default:
		a.conditions.Clear(nodeapi.ConditionMIG)
	}
}
