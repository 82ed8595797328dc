package cli

import (
	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/trace"
)

// traceObject returns the picture as the versioned object that is printed.
func traceObject(t *trace.Trace) *v1alpha1.Trace {
	object := &v1alpha1.Trace{
		TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindTrace), Subject: t.Subject,
		Disagreements: []v1alpha1.TraceDisagreement{}, Pods: []v1alpha1.TracePod{}, Read: sourceObjects(t.Read),
	}
	for i := range t.Disagreements {
		object.Disagreements = append(object.Disagreements, disagreementObject(&t.Disagreements[i]))
	}
	for _, pod := range t.Pods {
		object.Pods = append(object.Pods, podObject(pod))
	}
	for i := range t.Claims {
		object.Claims = append(object.Claims, claimObject(&t.Claims[i]))
	}
	object.Devices = deviceObjects(t.Devices)
	if len(t.Processes) > 0 {
		process := t.Processes[0]
		object.Process = &v1alpha1.TraceProcess{
			PID: process.PID, ContainerID: process.ContainerID, PodUID: process.PodUID,
			Sources: sourceObjects([]trace.Source{process.Source}),
		}
	}
	for _, one := range t.Unread {
		object.NotRead = append(object.NotRead, v1alpha1.TraceNotRead{TraceSource: sourceObject(one.Source), Why: one.Why})
	}
	return object
}

func disagreementObject(d *trace.Disagreement) v1alpha1.TraceDisagreement {
	pod := ""
	if (d.Pod != trace.Ref{}) {
		pod = d.Pod.String()
	}
	return v1alpha1.TraceDisagreement{
		Code: string(d.Code), Message: d.Head(), Pod: pod, Container: d.Container, Device: string(d.Device),
		Statements: factObjects(d.Statements),
	}
}

func claimObject(claim *trace.Claim) v1alpha1.TraceClaim {
	object := v1alpha1.TraceClaim{
		Namespace: claim.Ref.Namespace, Name: claim.Ref.Name, UID: claim.Ref.UID, Sources: sourceObjects(claim.Sources),
	}
	for _, pod := range claim.Pods {
		object.Pods = append(object.Pods, pod.String())
	}
	for _, d := range claim.Devices {
		object.Devices = append(object.Devices, v1alpha1.TraceClaimDevice{
			UUID: string(d.UUID), Requests: d.Requests, AdminAccess: d.Admin, Sources: sourceObjects(d.Sources),
		})
	}
	return object
}

func podObject(pod trace.Pod) v1alpha1.TracePod {
	object := v1alpha1.TracePod{
		Namespace: pod.Ref.Namespace, Name: pod.Ref.Name, UID: pod.Ref.UID, Phase: pod.Phase,
		Sources: sourceObjects(pod.Sources), Waiting: factObjects(pod.Waiting), Containers: []v1alpha1.TraceContainer{},
	}
	if pod.Node.Value != "" {
		node := factObjects([]trace.Fact{pod.Node})[0]
		node.Name = ""
		object.Node = &node
	}
	for _, c := range pod.Containers {
		container := v1alpha1.TraceContainer{
			Name: c.Name, Role: string(c.Role), ID: c.ID, State: c.State, PIDs: c.PIDs, Asked: factObjects(c.Asked), Claims: factObjects(c.Claims),
			Devices: deviceObjects(c.Devices), Nodes: nodeObjects(c.Nodes), CDINames: factObjects(c.CDINames),
			Env: factObjects(c.Env), Mounts: factObjects(c.Mounts), Annotations: factObjects(c.Annotations),
		}
		if container.Devices == nil {
			container.Devices = []v1alpha1.TraceDevice{}
		}
		object.Containers = append(object.Containers, container)
	}
	return object
}

func deviceObjects(devices []trace.Device) []v1alpha1.TraceDevice {
	var objects []v1alpha1.TraceDevice
	for _, d := range devices {
		objects = append(objects, v1alpha1.TraceDevice{
			UUID: string(d.UUID), IDs: d.IDs, Resource: d.Resource, Claims: factObjects(d.Claims), AdminAccess: d.Admin, Sources: sourceObjects(d.Sources),
			Facts: factObjects(d.Facts), CDINames: factObjects(d.CDINames), Nodes: nodeObjects(d.Nodes),
		})
	}
	return objects
}

func nodeObjects(nodes []trace.NodeFact) []v1alpha1.TraceNode {
	var objects []v1alpha1.TraceNode
	for _, n := range nodes {
		objects = append(objects, v1alpha1.TraceNode{Path: n.Path, Major: n.Major, Minor: n.Minor, Sources: sourceObjects(n.Sources)})
	}
	return objects
}

func factObjects(facts []trace.Fact) []v1alpha1.TraceFact {
	var objects []v1alpha1.TraceFact
	for _, f := range facts {
		objects = append(objects, v1alpha1.TraceFact{Name: f.Name, Value: f.Value, Sources: sourceObjects(f.Sources)})
	}
	return objects
}

func sourceObjects(sources []trace.Source) []v1alpha1.TraceSource {
	objects := []v1alpha1.TraceSource{}
	for _, s := range sources {
		objects = append(objects, sourceObject(s))
	}
	return objects
}

func sourceObject(s trace.Source) v1alpha1.TraceSource {
	return v1alpha1.TraceSource{Kind: string(s.Kind), Path: s.Path, Field: s.Field}
}
