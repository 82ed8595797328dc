package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/cli/term"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// traceTable prints a trace for people: disagreements first, then a tree of each pod with a column of sources, then the
// sources that were not read.
func traceTable(w io.Writer, t *v1alpha1.Trace) error {
	var roots []*term.Node
	for i := range t.Disagreements {
		roots = append(roots, disagreementNode(&t.Disagreements[i]))
	}
	if len(roots) > 0 {
		roots = append(roots, &term.Node{})
	}
	if p := t.Process; p != nil {
		roots = append(roots, &term.Node{Text: fmt.Sprintf("pid %d, container %s", p.PID,
			orElse(p.ContainerID, "unknown")), Note: notes(p.Sources)})
	}
	for i := range t.Devices {
		roots = append(roots, deviceNode(&t.Devices[i]))
	}
	if len(t.Devices) > 0 {
		roots = append(roots, &term.Node{})
	}
	for i := range t.Claims {
		roots = append(roots, claimNode(&t.Claims[i]))
	}
	if len(t.Claims) > 0 {
		roots = append(roots, &term.Node{})
	}
	for i := range t.Pods {
		roots = append(roots, podNode(&t.Pods[i]))
	}
	if len(t.Pods) == 0 {
		roots = append(roots, &term.Node{Text: "no holder in any source that was read"})
	}
	if err := term.Tree(w, roots); err != nil {
		return err
	}
	if err := notReadTable(w, t.NotRead); err != nil {
		return err
	}
	return whyLines(w, t)
}

func notReadTable(w io.Writer, list []v1alpha1.TraceNotRead) error {
	if len(list) == 0 {
		return nil
	}
	root := &term.Node{Text: "not read:"}
	for _, one := range list {
		text := string(one.Kind)
		if one.Path != "" && !strings.Contains(one.Why, one.Path) {
			text += " " + one.Path
		}
		root.Add(text+": "+one.Why, "")
	}
	return term.Tree(w, []*term.Node{{}, root})
}

func disagreementNode(d *v1alpha1.TraceDisagreement) *term.Node {
	node := &term.Node{Text: "DISAGREE " + d.Message}
	for _, statement := range d.Statements {
		node.Add(statement.Value, trace.SourcesText(statement.Sources))
	}
	return node
}

func claimNode(claim *v1alpha1.TraceClaim) *term.Node {
	text := "claim " + claim.UID
	if claim.Name != "" {
		text = fmt.Sprintf("claim %s/%s (uid %s)", claim.Namespace, claim.Name, orElse(claim.UID, "unknown"))
	}
	node := &term.Node{Text: text, Note: notes(claim.Sources)}
	if len(claim.Pods) > 0 {
		var pods []string
		for _, pod := range claim.Pods {
			pods = append(pods, pod.String())
		}
		node.Add("used by "+strings.Join(pods, ", "), "")
	}
	for _, device := range claim.Devices {
		text := string(device.UUID)
		if len(device.Requests) > 0 {
			text = "request " + strings.Join(device.Requests, ", ") + ": " + text
		}
		if device.AdminAccess {
			text += " (admin access, not held)"
		}
		node.Add(text, notes(device.Sources))
	}
	if len(claim.Devices) == 0 {
		node.Add("no device of this driver is allocated", "")
	}
	return node
}

func podNode(pod *v1alpha1.TracePod) *term.Node {
	text := "pod " + pod.UID
	if pod.Name != "" {
		text = fmt.Sprintf("pod %s/%s (uid %s)", pod.Namespace, pod.Name, orElse(pod.UID, "unknown"))
	}
	node := &term.Node{Text: strings.Join(present(text, pod.Phase), "  "), Note: notes(pod.Sources)}
	if pod.Node != nil {
		node.Add("node "+pod.Node.Value, notes(pod.Node.Sources))
	}
	for _, wait := range pod.Waiting {
		node.Add("waits: "+wait.Name+": "+wait.Value, notes(wait.Sources))
	}
	for i := range pod.Containers {
		containerNode(node, &pod.Containers[i])
	}
	return node
}

func containerNode(pod *term.Node, c *v1alpha1.TraceContainer) {
	head := "container " + c.Name
	if c.Role != "" && c.Role != trace.RoleApp {
		head = string(c.Role) + " " + head
	}
	if c.State != "" && c.State != trace.StateRunning {
		head += " (" + c.State + ")"
	}
	var asks []string
	var askSources []v1alpha1.TraceSource
	for _, ask := range c.Asked {
		asks = append(asks, ask.Name+": "+ask.Value)
		askSources = append(askSources, ask.Sources...)
	}
	if len(asks) > 0 {
		head += ": requested " + strings.Join(asks, ", ")
	}
	node := pod.Add(head, notes(askSources))
	for _, claim := range c.Claims {
		node.Add("uses claim "+claim.Name+", "+claim.Value, notes(claim.Sources))
	}
	for i := range c.Devices {
		node.Children = append(node.Children, deviceNode(&c.Devices[i]))
	}
	for _, n := range c.Nodes {
		node.Add(trace.NodeText(n.Node), notes(n.Sources))
	}
	for _, variable := range c.Env {
		node.Add("env "+variable.Name+"="+variable.Value, notes(variable.Sources))
	}
	for _, annotation := range c.Annotations {
		node.Add("annotation "+annotation.Name+"="+annotation.Value, notes(annotation.Sources))
	}
	if len(c.Mounts) > 0 {
		var all []v1alpha1.TraceSource
		for _, mount := range c.Mounts {
			all = append(all, mount.Sources...)
		}
		node.Add(fmt.Sprintf("GPU mounts: %d (listed with -o yaml)", len(c.Mounts)), notes(all))
	}
}

// shown formats the facts of a device that appear in its own line.
func shown(name, value string) string {
	switch name {
	case trace.FactIndex:
		return "index " + value
	case trace.FactVendor, trace.FactProduct, trace.FactPCI, trace.FactProfile:
		return value
	case trace.FactNUMA:
		return "NUMA " + value
	case trace.FactHealth:
		if value != "Healthy" {
			return value
		}
	}
	return ""
}

// deviceNode prints a device with the sources that say that it is held, and its facts below, one line per set of
// sources.
func deviceNode(d *v1alpha1.TraceDevice) *term.Node {
	text := string(d.UUID)
	if len(d.IDs) > 0 {
		text += " (" + strings.Join(d.IDs, ", ") + ")"
	}
	node := &term.Node{Text: text, Note: notes(d.Sources)}
	var order []string
	lines := map[string][]string{}
	for _, fact := range d.Facts {
		if part := shown(fact.Name, fact.Value); part != "" {
			note := notes(fact.Sources)
			if lines[note] == nil {
				order = append(order, note)
			}
			lines[note] = append(lines[note], part)
		}
	}
	for _, note := range order {
		node.Add(strings.Join(lines[note], "  "), note)
	}
	for _, claim := range d.Claims {
		node.Add("by claim "+claim.Name+", "+claim.Value, notes(claim.Sources))
	}
	for _, fact := range d.Facts {
		if text := sharingText(d, fact); text != "" {
			node.Add(text, notes(fact.Sources))
		}
	}
	for _, name := range d.CDINames {
		node.Add("CDI "+name.Value, notes(name.Sources))
	}
	for _, n := range d.Nodes {
		node.Add(trace.NodeText(n.Node), notes(n.Sources))
	}
	return node
}

// sharingText formats a fact about how a device is shared or partitioned, which gets its own line; it returns "" for
// other facts.
func sharingText(d *v1alpha1.TraceDevice, fact v1alpha1.TraceFact) string {
	switch fact.Name {
	case trace.FactPlacement:
		return fact.Value + ": isolated from the GPU's other MIG devices"
	case trace.FactShare:
		return "replica " + fact.Value
	case trace.FactSharing:
		return fact.Value
	case trace.FactAdvisory:
		return "advisory, set in the container: " + fact.Value
	case trace.FactDraining:
		return "not allocated to new pods: " + fact.Value
	case trace.FactSharedWith:
		return "shares " + deviceName(d) + " with " + fact.Value
	case trace.FactNeighbours:
		return "other MIG devices of the GPU: " + fact.Value
	}
	return ""
}

// deviceName returns the name of a device for people: "GPU 1", "MIG device 1:0", or its UUID.
func deviceName(d *v1alpha1.TraceDevice) string {
	for _, fact := range d.Facts {
		if fact.Name != trace.FactIndex {
			continue
		}
		if strings.Contains(fact.Value, ":") {
			return "MIG device " + fact.Value
		}
		return "GPU " + fact.Value
	}
	return string(d.UUID)
}

// notes lists the kinds of sources, without duplicates.
func notes(sources []v1alpha1.TraceSource) string {
	var kinds []string
	for _, source := range sources {
		if !slices.Contains(kinds, string(source.Kind)) {
			kinds = append(kinds, string(source.Kind))
		}
	}
	return strings.Join(kinds, ", ")
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func present(texts ...string) []string {
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}
