// Package checkpoint decodes and encodes the file in which the kubelet's device manager records which devices it
// allocated to which container: the raw JSON of both its formats, and the checksum over it.
//
// The kubelet's checksum is FNV-1a (32 bits) over a dump of its Go values, type names included (k8s.io/kubernetes,
// pkg/kubelet/checkpointmanager/checksum and pkg/util/hash). It can be recomputed without that module because the
// dumper is public (k8s.io/utils/dump) and prints types by package *name*: so this package must be called checkpoint,
// and its types must keep the kubelet's names and the order of its fields. Nothing else may be put into these types.
//
// It must not import k8s.io/kubernetes, nor read files: it works on bytes.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"k8s.io/utils/dump"
)

// DevicesPerNUMA are device IDs by NUMA node; -1 stands for a device without one. A device of several nodes is listed
// under each.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry has the devices of one resource that one container holds, since kubelet 1.20.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	AllocResp     []byte
}

type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// File is a decoded checkpoint.
type File struct {
	Entries []PodDevicesEntry
	// Registered are the healthy device IDs per resource at the time of writing.
	Registered map[string][]string
	// Old is true for the format of kubelets before 1.20, whose devices have no NUMA nodes.
	Old bool
	// Sum is the checksum in the file; nil when it has none. Such a file was not written by a kubelet, and a kubelet
	// would refuse it.
	Sum *uint64
	// Want is the correct checksum for the content.
	Want uint64
}

// errNoData is returned for JSON that is valid but does not contain a checkpoint.
var errNoData = errors.New(`has no "Data"`)

// Decode reads a checkpoint of either format. Errors are those of encoding/json,
// with its offsets, and errNoData. A wrong checksum is not an error here: see File.
func Decode(blob []byte) (*File, error) {
	file, err := decodeNew(blob)
	var mistyped *json.UnmarshalTypeError
	// The two formats differ only in the type of DeviceIDs.
	if errors.As(err, &mistyped) && strings.HasSuffix(mistyped.Field, "DeviceIDs") && mistyped.Value == "array" {
		return decodeOld(blob)
	}
	return file, err
}

func decodeNew(blob []byte) (*File, error) {
	var raw struct {
		Data     *checkpointData
		Checksum *uint64
	}
	if err := json.Unmarshal(blob, &raw); err != nil {
		return nil, err
	}
	if raw.Data == nil {
		return nil, errNoData
	}
	return &File{
		Entries:    raw.Data.PodDeviceEntries,
		Registered: raw.Data.RegisteredDevices,
		Sum:        raw.Checksum,
		Want:       checksum(*raw.Data),
	}, nil
}

// decodeOld declares its types inside, because both formats must have types of the same names for the checksum to be
// correct.
func decodeOld(blob []byte) (*File, error) {
	type PodDevicesEntry struct {
		PodUID        string
		ContainerName string
		ResourceName  string
		DeviceIDs     []string
		AllocResp     []byte
	}
	type checkpointData struct {
		PodDeviceEntries  []PodDevicesEntry
		RegisteredDevices map[string][]string
	}
	var raw struct {
		Data     *checkpointData
		Checksum *uint64
	}
	if err := json.Unmarshal(blob, &raw); err != nil {
		return nil, err
	}
	if raw.Data == nil {
		return nil, errNoData
	}
	file := &File{Registered: raw.Data.RegisteredDevices, Old: true, Sum: raw.Checksum, Want: checksum(*raw.Data)}
	for _, entry := range raw.Data.PodDeviceEntries {
		file.Entries = append(file.Entries, newEntry(entry.PodUID, entry.ContainerName, entry.ResourceName, entry.DeviceIDs, entry.AllocResp))
	}
	return file, nil
}

func newEntry(pod, container, resource string, ids []string, response []byte) PodDevicesEntry {
	return PodDevicesEntry{
		PodUID: pod, ContainerName: container, ResourceName: resource,
		DeviceIDs: DevicesPerNUMA{-1: slices.Clone(ids)}, AllocResp: response,
	}
}

// Encode writes a checkpoint as a kubelet does, including the checksum, for tests that simulate the kubelet.
func Encode(entries []PodDevicesEntry, registered map[string][]string) ([]byte, error) {
	data := checkpointData{PodDeviceEntries: entries, RegisteredDevices: registered}
	return json.Marshal(struct {
		Data     checkpointData
		Checksum uint64
	}{data, checksum(data)})
}

func checksum(data any) uint64 {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", dump.ForHash(data))
	return uint64(hash.Sum32())
}
