package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/mig"
)

// migPlan is a plan with its context.
type migPlan struct {
	subject *migSubject
	layout  string
	source  string
	gpus    []mig.GPUPlan
	notRead []v1alpha1.TraceNotRead
}

// state returns the worst state of the GPUs.
func (p *migPlan) state() v1alpha1.MIGPlanState {
	state := v1alpha1.MIGPlanNothing
	for i := range p.gpus {
		switch device := &p.gpus[i]; {
		case device.Refused != "":
			return v1alpha1.MIGPlanRefused
		case len(device.Blockers) > 0:
			state = v1alpha1.MIGPlanWaits
		case device.Changes() && state == v1alpha1.MIGPlanNothing:
			state = v1alpha1.MIGPlanReady
		}
	}
	return state
}

// print writes the plan for people: the source of the layout, the picture, and the outcome.
func (p *migPlan) print(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: layout %s, ", orElse(p.subject.node, "this hardware"), p.layout)
	if p.source == ofHardware {
		text.WriteString("one that follows from the hardware\n\n")
	} else {
		fmt.Fprintf(&text, "defined by %s\n\n", p.source)
	}
	if len(p.gpus) == 0 {
		text.WriteString("it selects no GPU of this node\n")
	}
	text.WriteString(mig.Describe(p.gpus, p.subject.gpus))
	text.WriteString("\n" + p.conclusion() + "\n")
	// Product and pod names are untrusted text; the picture's own line ends stay.
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(term.Clean(strings.TrimSuffix(line, "\n")), " ")); err != nil {
			return err
		}
	}
	return notReadTable(w, p.notRead)
}

func (p *migPlan) conclusion() string {
	node := p.subject.node
	if p.subject.api == nil {
		node = "" // there is no node to apply it to
	}
	switch p.state() {
	case v1alpha1.MIGPlanRefused:
		return "It is refused, so no GPU would be changed."
	case v1alpha1.MIGPlanNothing:
		return "There is nothing to do."
	case v1alpha1.MIGPlanReady:
		if node == "" {
			return "It can be applied now."
		}
		return fmt.Sprintf("It can be applied now: berth mig apply %s %s", node, p.layout)
	}
	text := "It waits for " + strings.Join(p.blockers(), ", ") + "."
	if node != "" {
		text += fmt.Sprintf("\nberth mig apply %s %s waits for them; with --force it evicts them.", node, p.layout)
	}
	return text
}

// blockers returns the blocking holders, without duplicates, in the order of the GPUs.
func (p *migPlan) blockers() []string {
	var all []string
	for i := range p.gpus {
		for _, blocker := range p.gpus[i].Blockers {
			for _, holder := range blocker.Holders {
				if !slices.Contains(all, holder) {
					all = append(all, holder)
				}
			}
		}
	}
	return all
}

// object returns the plan as the versioned object that is printed.
func (p *migPlan) object() *v1alpha1.MIGPlan {
	object := &v1alpha1.MIGPlan{
		TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindMIGPlan), Node: p.subject.node, Layout: p.layout, LayoutSource: p.source,
		State: p.state(), GPUs: []v1alpha1.MIGPlanGPU{}, NotRead: p.notRead,
	}
	for i := range p.gpus {
		plan := &p.gpus[i]
		device := v1alpha1.MIGPlanGPU{
			UUID: string(plan.UUID), Index: plan.Index, MIGEnabled: plan.Wanted.Enabled, Devices: plan.Wanted.Devices,
			Refused: plan.Refused, SetMode: plan.SetMode, Reset: plan.Reset,
		}
		for k := range plan.Keep {
			device.Keep = append(device.Keep, instanceObject(&plan.Keep[k]))
		}
		for k := range plan.Destroy {
			device.Destroy = append(device.Destroy, instanceObject(&plan.Destroy[k]))
		}
		for _, one := range plan.Create {
			device.Create = append(device.Create, v1alpha1.MIGPlaced{Profile: one.Profile, Start: one.Start, Size: one.Size})
		}
		for _, one := range plan.Blockers {
			blocker := v1alpha1.MIGBlocker{Holders: one.Holders}
			if one.Instance.Profile != "" {
				instance := instanceObject(&one.Instance)
				blocker.Instance = &instance
			}
			device.Blockers = append(device.Blockers, blocker)
		}
		object.GPUs = append(object.GPUs, device)
	}
	return object
}

func instanceObject(one *mig.Instance) v1alpha1.MIGInstance {
	object := v1alpha1.MIGInstance{
		MIGPlaced: v1alpha1.MIGPlaced{Profile: one.Profile, Start: one.Start, Size: one.Size}, GI: one.GI, Holders: one.Holders,
	}
	if one.UUID != "" {
		object.UUIDs = append(object.UUIDs, string(one.UUID))
	}
	for _, sibling := range one.Siblings {
		object.UUIDs = append(object.UUIDs, string(sibling))
	}
	return object
}
