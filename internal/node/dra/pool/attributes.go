package pool

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// The attributes of devices, in the domain of the driver. Names and values are those of NVIDIA's driver where it has them.
const (
	// AttributeType is TypeGPU or TypeMIG.
	AttributeType = "type"
	// AttributeUUID is the UUID of a GPU or of an existing MIG device, AttributeParentUUID that of the GPU of a MIG device.
	AttributeUUID         = "uuid"
	AttributeParentUUID   = "parentUUID"
	AttributeProfile      = "profile"
	AttributeProduct      = "productName"
	AttributeArchitecture = "architecture"
	AttributeCapability   = "cudaComputeCapability"
	AttributeDriver       = "driverVersion"
	AttributeCUDA         = "cudaDriverVersion"
	// AttributeIsland is equal for GPUs of a node that NVLinks connect; a GPU without NVLinks does not have it.
	AttributeIsland = "nvlinkIsland"
	// AttributeClique is equal for GPUs of several nodes on one NVLink fabric.
	AttributeClique = "clique"
	// AttributeHealth is the class of the health: Healthy, Degraded, Draining or Unhealthy.
	AttributeHealth = "health"
)

// The values of AttributeType.
const (
	TypeGPU = "gpu"
	TypeMIG = "mig"
)

// The attributes that Kubernetes defines for devices of all drivers (k8s.io/dynamic-resource-allocation/deviceattribute).
const (
	AttributePCIBusID = "resource.kubernetes.io/pciBusID"
	AttributePCIeRoot = "resource.kubernetes.io/pcieRoot"
	AttributeNUMANode = "resource.kubernetes.io/numaNode"
)

// The capacities of devices, in the domain of the driver.
const (
	CapacityMemory          = "memory"
	CapacityMultiprocessors = "multiprocessors"
	CapacityCopyEngines     = "copyEngines"
	CapacityDecoders        = "decoders"
	CapacityEncoders        = "encoders"
	CapacityJPEGEngines     = "jpegEngines"
	CapacityOFAEngines      = "ofaEngines"
)

type (
	attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacities = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
)

// describe returns the attributes that a GPU and its MIG devices have in common.
func describe(g *gpu.GPU, island string) attributes {
	a := attributes{}
	setText(a, AttributeProduct, g.Product)
	setText(a, AttributeArchitecture, g.Architecture)
	setVersion(a, AttributeDriver, g.Driver.Version)
	for name, version := range map[resourceapi.QualifiedName]gpu.Version{AttributeCapability: g.ComputeCapability, AttributeCUDA: g.Driver.CUDA} {
		if version != (gpu.Version{}) {
			setVersion(a, name, version.String())
		}
	}
	setText(a, AttributeIsland, island)
	if g.Clique != (gpu.Clique{}) {
		setText(a, AttributeClique, fmt.Sprintf("%s.%d", g.Clique.ClusterUUID, g.Clique.ID))
	}
	if g.PCI != (gpu.PCIAddress{}) {
		setText(a, AttributePCIBusID, g.PCI.String())
	}
	setText(a, AttributePCIeRoot, g.PCIeRoot)
	if g.NUMANode >= 0 {
		node := int64(g.NUMANode)
		a[AttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &node}
	}
	return a
}

// setText sets an attribute unless the text is empty. A text that is longer than the API permits is cut.
func setText(a attributes, name resourceapi.QualifiedName, text string) {
	if len(text) > resourceapi.DeviceAttributeMaxValueLength {
		text = text[:resourceapi.DeviceAttributeMaxValueLength]
	}
	if text = strings.ToValidUTF8(text, ""); text != "" {
		a[name] = resourceapi.DeviceAttribute{StringValue: &text}
	}
}

// setVersion sets an attribute from a version of one to three numbers, such as 580.95.05, which is 580.95.5 as a semantic version. It
// leaves the attribute out for any other version.
func setVersion(a attributes, name resourceapi.QualifiedName, version string) {
	parts := strings.Split(version, ".")
	if len(parts) > 3 {
		return
	}
	numbers := [3]uint64{}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return
		}
		numbers[i] = n
	}
	text := fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2])
	a[name] = resourceapi.DeviceAttribute{VersionValue: &text}
}

// capacity returns the capacities of a device. Without attributes it is the memory alone: unknown is not zero.
func capacity(memory uint64, has gpu.MIGAttributes) capacities {
	c := capacities{}
	if memory > 0 {
		c[CapacityMemory] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(memory), resource.BinarySI)}
	}
	if has == (gpu.MIGAttributes{}) {
		return c
	}
	for name, n := range map[resourceapi.QualifiedName]int{
		CapacityMultiprocessors: has.Multiprocessors, CapacityCopyEngines: has.CopyEngines, CapacityDecoders: has.Decoders,
		CapacityEncoders: has.Encoders, CapacityJPEGEngines: has.JPEGs, CapacityOFAEngines: has.OFAs,
	} {
		c[name] = resourceapi.DeviceCapacity{Value: count(n)}
	}
	return c
}

// most returns the largest number of each resource that an instance of the GPU can have.
func most(geometry *gpu.MIGGeometry) gpu.MIGAttributes {
	var all gpu.MIGAttributes
	for i := range geometry.Profiles {
		one := &geometry.Profiles[i].Attributes
		all = gpu.MIGAttributes{
			Multiprocessors: max(all.Multiprocessors, one.Multiprocessors), CopyEngines: max(all.CopyEngines, one.CopyEngines),
			Decoders: max(all.Decoders, one.Decoders), Encoders: max(all.Encoders, one.Encoders),
			JPEGs: max(all.JPEGs, one.JPEGs), OFAs: max(all.OFAs, one.OFAs),
		}
	}
	return all
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
