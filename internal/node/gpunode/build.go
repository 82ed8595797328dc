package gpunode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Input is everything that an object is made of.
type Input struct {
	// AgentVersion is the version of the agent that publishes the object.
	AgentVersion string
	Snapshot     *gpu.Snapshot
	// Holdings are those of the ledger, without the ones whose pod is not known yet.
	Holdings []gpu.Holding
	// Offered is the use of each advertised GPU and MIG device.
	Offered map[gpu.UUID]v1alpha1.DeviceOffer
	// Excluded are the GPUs that the configuration excludes.
	Excluded map[gpu.UUID]bool
	// TopologyManagerPolicy is the kubelet's; empty while it is not known.
	TopologyManagerPolicy string
	// Config is the configuration in force.
	Config v1alpha1.GPUConfigStatus
	// Conditions are copied unchanged, with their transition times.
	Conditions []metav1.Condition
	// Gate is nil where the gate is off.
	Gate *v1alpha1.GateStatus
}

// Build returns the object of a node. It is a pure function. The order of holdings and conditions does not matter, and
// holdings of devices that the snapshot does not have are left out.
func Build(nodeName string, in Input) *v1alpha1.GPUNode {
	snapshot := in.Snapshot
	node := &v1alpha1.GPUNode{TypeMeta: v1alpha1.TypeMeta(v1alpha1.KindGPUNode)}
	node.Name = nodeName
	status := &node.Status
	status.AgentVersion = in.AgentVersion
	status.Driver, status.Drivers = drivers(snapshot)
	holders := holdersOf(in.Holdings)
	for i := range snapshot.GPUs {
		made := device(&snapshot.GPUs[i], holders, in.Offered)
		made.Excluded = in.Excluded[snapshot.GPUs[i].UUID]
		if snapshot.SeveralVendors() {
			made.Vendor = snapshot.GPUs[i].Vendor
		}
		status.Devices = append(status.Devices, made)
	}
	status.Topology, status.PCITopology = snapshot.Topology.Letters(), snapshot.Topology.PathLetters()
	status.Kubelet.TopologyManagerPolicy = in.TopologyManagerPolicy
	status.Problems = causes(snapshot.Faults)
	status.Summary = summary(status.Devices)
	status.Config = in.Config
	status.Conditions = conditions(in.Conditions)
	if in.Gate != nil {
		status.Gate = in.Gate.DeepCopy()
		status.Gate.Since = metav1.NewTime(in.Gate.Since.UTC().Truncate(time.Second))
	}
	return node
}

// drivers returns the driver of the only vendor or, of several, that of the first by name, one that supports CUDA before
// others; and the drivers of all vendors where there are several.
func drivers(snapshot *gpu.Snapshot) (first v1alpha1.GPUDriver, all []v1alpha1.VendorDriver) {
	for _, vendor := range snapshot.Vendors {
		if !vendor.Driver.Present() {
			continue
		}
		made := v1alpha1.GPUDriver{Version: vendor.Driver.Version}
		if vendor.Driver.CUDA != (gpu.Version{}) {
			made.CUDAVersion = vendor.Driver.CUDA.String()
		}
		if first.Version == "" || first.CUDAVersion == "" && made.CUDAVersion != "" {
			first = made
		}
		if snapshot.SeveralVendors() {
			all = append(all, v1alpha1.VendorDriver{Vendor: vendor.Name, GPUDriver: made})
		}
	}
	return first, all
}

// conditions are ordered by type. Like all times of the API they have whole seconds.
func conditions(list []metav1.Condition) []metav1.Condition {
	list = slices.Clone(list)
	for i := range list {
		list[i].LastTransitionTime = metav1.NewTime(list[i].LastTransitionTime.UTC().Truncate(time.Second))
	}
	slices.SortFunc(list, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return list
}

// holdersOf returns the holders of each device, sorted by pod, container and replica.
func holdersOf(holdings []gpu.Holding) map[gpu.UUID][]v1alpha1.Holder {
	holders := map[gpu.UUID][]v1alpha1.Holder{}
	for _, h := range holdings {
		holders[h.Key.Device()] = append(holders[h.Key.Device()], holder(h))
	}
	for id := range holders {
		slices.SortFunc(holders[id], compareHolders)
		holders[id] = slices.CompactFunc(holders[id], func(a, b v1alpha1.Holder) bool { return compareHolders(a, b) == 0 })
	}
	return holders
}

// mostPods bounds the pods of a claim in the object: a claim can have 256, and 16 GPUs each list them.
const mostPods = 16

// holder converts a holding to the type of the API, which distinguishes the names of pods and ResourceClaims.
func holder(h gpu.Holding) v1alpha1.Holder {
	made := v1alpha1.Holder{
		Kind: string(h.Holder.Kind), ID: h.Holder.ID, Namespace: h.Holder.Namespace, Pod: h.Holder.Name, PodUID: h.Holder.PodUID,
		Container: h.Holder.Container, Resource: h.Holder.Resource, Share: h.Key.Share,
	}
	if h.Holder.Kind == gpu.HolderClaim {
		made.Pod, made.Claim, made.Requests, made.Sharing = "", h.Holder.Name, h.Requests, sharingOf(h)
		made.Pods = podsOf(h.Pods)
		made.MorePods = max(0, len(made.Pods)-mostPods)
		made.Pods = made.Pods[:len(made.Pods)-made.MorePods]
	}
	return made
}

// sharingOf returns how the containers of a claim share its GPU, when that is not by the driver's time slice.
func sharingOf(h gpu.Holding) *v1alpha1.ClaimSharing {
	switch {
	case h.MPS.Wanted():
		limits := v1alpha1.ClaimMPSLimits(h.MPS)
		return &v1alpha1.ClaimSharing{Mode: v1alpha1.SharingMPS, MPS: &limits}
	case h.TimeSlice != "" && h.TimeSlice != gpu.TimeSliceDefault:
		return &v1alpha1.ClaimSharing{Mode: v1alpha1.SharingTimeSlicing, TimeSlice: v1alpha1.TimeSlice(h.TimeSlice)}
	}
	return nil
}

// podsOf returns the pods of a claim by name and UID.
func podsOf(pods []gpu.Pod) []v1alpha1.HolderPod {
	var made []v1alpha1.HolderPod
	for _, pod := range pods {
		made = append(made, v1alpha1.HolderPod{Name: pod.Name, UID: pod.UID})
	}
	slices.SortFunc(made, func(a, b v1alpha1.HolderPod) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	return made
}

// HolderOf is the reverse of what Build writes of a holder.
func HolderOf(h *v1alpha1.Holder) gpu.Holder {
	return gpu.Holder{
		Kind: gpu.HolderKind(h.Kind), ID: h.ID, Namespace: h.Namespace, Name: cmp.Or(h.Pod, h.Claim), PodUID: h.PodUID,
		Container: h.Container, Resource: h.Resource,
	}
}

func compareHolders(a, b v1alpha1.Holder) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(a.PodUID, b.PodUID),
		strings.Compare(a.Claim, b.Claim), strings.Compare(a.ID, b.ID),
		strings.Compare(a.Container, b.Container), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Resource, b.Resource),
		cmp.Compare(a.Share, b.Share))
}

func device(g *gpu.GPU, holders map[gpu.UUID][]v1alpha1.Holder, offered map[gpu.UUID]v1alpha1.DeviceOffer) v1alpha1.GPUDevice {
	made := v1alpha1.GPUDevice{
		UUID: string(g.UUID), Index: g.Index, Minor: g.Minor, PCIBusID: g.PCI.String(),
		Product: g.Product, Architecture: g.Architecture, ComputeCapability: g.ComputeCapability.String(),
		MemoryBytes: int64(g.MemoryBytes), NUMANode: g.NUMANode, Health: health(g.Health),
		MIGEnabled: g.MIG.Enabled, MIGModeNeedsReset: g.MIG.ModeNeedsReset, MIGProfiles: profiles(g.MIG.Geometry),
		Offered: offerOf(g.UUID, offered), Holders: holders[g.UUID],
	}
	if g.DeviceID != 0 {
		made.DeviceID = fmt.Sprintf("0x%08X", g.DeviceID)
	}
	if g.SubsystemID != 0 {
		made.SubsystemID = fmt.Sprintf("0x%08X", g.SubsystemID)
	}
	if g.Clique != (gpu.Clique{}) {
		made.Clique = fmt.Sprintf("%s.%d", g.Clique.ClusterUUID, g.Clique.ID)
	}
	for _, mig := range g.MIG.Devices {
		made.MIGDevices = append(made.MIGDevices, v1alpha1.MIGDevice{
			UUID: string(mig.UUID), Profile: mig.Profile, Index: mig.Index, GI: mig.GI, CI: mig.CI,
			Start: mig.Start, Size: mig.Size, MemoryBytes: int64(mig.MemoryBytes), Health: partHealth(mig.Health),
			Offered: offerOf(mig.UUID, offered), Holders: holders[mig.UUID],
		})
	}
	return made
}

// offerOf returns a copy, since the object outlives the map.
func offerOf(id gpu.UUID, offered map[gpu.UUID]v1alpha1.DeviceOffer) *v1alpha1.DeviceOffer {
	if offer, ok := offered[id]; ok {
		return &offer
	}
	return nil
}

func profiles(geometry gpu.MIGGeometry) []v1alpha1.MIGProfile {
	var list []v1alpha1.MIGProfile
	for _, profile := range geometry.Profiles {
		list = append(list, v1alpha1.MIGProfile{
			Name: profile.Name, ComputeSlices: profile.ComputeSlices, Size: profile.Size,
			Starts: slices.Clone(profile.Starts), Max: profile.Max,
		})
	}
	return list
}

func health(h gpu.Health) v1alpha1.DeviceHealth {
	return v1alpha1.DeviceHealth{State: string(cmp.Or(h.State, gpu.Healthy)), Causes: causes(h.Causes), Recovery: string(h.Recovery)}
}

// partHealth returns nil for a MIG device without a health verdict.
func partHealth(h gpu.Health) *v1alpha1.DeviceHealth {
	if h.State == "" {
		return nil
	}
	made := health(h)
	return &made
}

// causes truncates times to seconds, the precision of the API, so that an object that is read equals the one that was
// written.
func causes(list []gpu.Cause) []v1alpha1.Cause {
	var out []v1alpha1.Cause
	for _, cause := range list {
		made := v1alpha1.Cause{Code: cause.Code, Message: cause.Message, Recover: cause.Recover}
		if !cause.Since.IsZero() {
			since := metav1.NewTime(cause.Since.UTC().Truncate(time.Second))
			made.Since = &since
		}
		out = append(out, made)
	}
	return out
}

func summary(devices []v1alpha1.GPUDevice) v1alpha1.GPUSummary {
	sum := v1alpha1.GPUSummary{GPUs: len(devices), Model: model(devices)}
	for i := range devices {
		healthy := gpu.Health{State: gpu.State(devices[i].Health.State)}.OK()
		held := Held(&devices[i])
		if held {
			sum.Held++
		}
		if !healthy {
			sum.Unhealthy++
		}
		if healthy && !held {
			sum.Free++
		}
	}
	return sum
}

// Held reports whether the GPU, a replica or a partition of it is held.
func Held(device *v1alpha1.GPUDevice) bool {
	return len(device.Holders) > 0 || slices.ContainsFunc(device.MIGDevices, func(m v1alpha1.MIGDevice) bool { return len(m.Holders) > 0 })
}

// model is the one product of a node, or each with its count, most first.
func model(devices []v1alpha1.GPUDevice) string {
	counts := map[string]int{}
	var products []string
	for _, device := range devices {
		if counts[device.Product] == 0 {
			products = append(products, device.Product)
		}
		counts[device.Product]++
	}
	if len(products) < 2 {
		return strings.Join(products, "")
	}
	slices.SortFunc(products, func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	for i, product := range products {
		products[i] = fmt.Sprintf("%dx %s", counts[product], product)
	}
	return strings.Join(products, ", ")
}
