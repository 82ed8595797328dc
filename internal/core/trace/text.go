package trace

import (
	"fmt"
	"strings"
)

// Describe returns the picture as plain lines, disagreements first, each fact with its sources in brackets. It is for
// transcripts and logs; berth trace formats its own output.
func (t *Trace) Describe() string {
	var out strings.Builder
	line := func(depth int, format string, args ...any) {
		fmt.Fprintf(&out, strings.Repeat("  ", depth)+format+"\n", args...)
	}
	for i := range t.Disagreements {
		line(0, "! %s %s", t.Disagreements[i].Code, t.Disagreements[i].sentence())
	}
	for _, process := range t.Processes {
		line(0, "pid %d container %s pod %s [%s]", process.PID, process.ContainerID, process.PodUID, process.Source.Kind)
	}
	if t.Subject != "" {
		for _, device := range t.Devices {
			describeDevice(line, 0, device)
		}
	}
	for _, claim := range t.Claims {
		describeClaim(line, claim)
	}
	for _, pod := range t.Pods {
		uid, node := "", ""
		if pod.Ref().named() {
			uid = pod.UID
		}
		if pod.Node != nil {
			node = pod.Node.Value
		}
		line(0, "%s [%s]", strings.Join(nonEmpty("pod", pod.Ref().String(), uid, pod.Phase, node), " "), SourcesText(pod.Sources))
		for _, wait := range pod.Waiting {
			line(1, "waits %s: %s [%s]", wait.Name, wait.Value, SourcesText(wait.Sources))
		}
		for _, container := range pod.Containers {
			describeContainer(line, container)
		}
	}
	for _, unread := range t.Unread {
		line(0, "not read: %s: %s", unread.Source.Kind, unread.Why)
	}
	return out.String()
}

func describeClaim(line func(int, string, ...any), claim Claim) {
	uid := ""
	if claim.Name != "" {
		uid = claim.UID
	}
	line(0, "%s [%s]", strings.Join(nonEmpty("claim", claim.ref().String(), uid), " "), SourcesText(claim.Sources))
	for _, pod := range claim.Pods {
		line(1, "pod %s", pod)
	}
	for _, device := range claim.Devices {
		access := ""
		if device.AdminAccess {
			access = "admin access"
		}
		line(1, "%s [%s]", strings.Join(nonEmpty(string(device.UUID), strings.Join(device.Requests, ","), access), " "), SourcesText(device.Sources))
	}
}

func describeContainer(line func(int, string, ...any), container Container) {
	line(1, "%s", strings.Join(nonEmpty("container", container.Name, string(container.Role), container.State), " "))
	for _, ask := range container.Asked {
		line(2, "asked %s: %s [%s]", ask.Name, ask.Value, SourcesText(ask.Sources))
	}
	for _, claim := range container.Claims {
		line(2, "claim %s: %s [%s]", claim.Name, claim.Value, SourcesText(claim.Sources))
	}
	for _, device := range container.Devices {
		describeDevice(line, 2, device)
	}
	for _, node := range container.Nodes {
		line(2, "node %s [%s]", NodeText(node.Node), SourcesText(node.Sources))
	}
	for _, variable := range container.Env {
		line(2, "env %s=%s [%s]", variable.Name, variable.Value, SourcesText(variable.Sources))
	}
	for _, mount := range container.Mounts {
		line(2, "mount %s from %s [%s]", mount.Name, mount.Value, SourcesText(mount.Sources))
	}
}

func describeDevice(line func(int, string, ...any), depth int, device Device) {
	head := nonEmpty(string(device.UUID), strings.Join(device.IDs, ","), device.Fact(FactProduct), device.Fact(FactPCI))
	if index := device.Fact(FactIndex); index != "" {
		head = append(head, nonEmpty(device.Fact(FactVendor), "index "+index)...)
		head = append(head, "NUMA "+device.Fact(FactNUMA))
	}
	line(depth, "%s [%s]", strings.Join(head, " "), SourcesText(device.Sources))
	for _, claim := range device.Claims {
		line(depth+1, "claim %s: %s [%s]", claim.Name, claim.Value, SourcesText(claim.Sources))
	}
	for _, fact := range device.Facts {
		switch fact.Name {
		case FactPlacement, FactShare, FactSharing, FactAdvisory, FactDraining, FactSharedWith, FactNeighbours:
			line(depth+1, "%s %s [%s]", fact.Name, fact.Value, SourcesText(fact.Sources))
		}
	}
	for _, name := range device.CDINames {
		line(depth+1, "CDI %s [%s]", name.Value, SourcesText(name.Sources))
	}
	for _, node := range device.Nodes {
		line(depth+1, "node %s [%s]", NodeText(node.Node), SourcesText(node.Sources))
	}
}

func nonEmpty(texts ...string) []string {
	var out []string
	for _, text := range texts {
		if text != "" {
			out = append(out, text)
		}
	}
	return out
}
