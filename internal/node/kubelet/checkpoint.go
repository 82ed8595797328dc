package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-gpu/berth/internal/node/kubelet/checkpoint"
)

// CheckpointFile is the path of the checkpoint below the kubelet's directory.
const CheckpointFile = "device-plugins/kubelet_internal_checkpoint"

// MaxCheckpoint is the maximum size in bytes of a checkpoint that is read: a thousand times that of a full node.
const MaxCheckpoint = 64 << 20

// ErrNoCheckpoint means that there is no checkpoint: the kubelet has never had a device plugin, or the file was
// deleted. The kubelet may still know its assignments: a running kubelet has them in memory and writes the whole file
// again at the next Allocate or device list.
var ErrNoCheckpoint = errors.New("the kubelet has no device checkpoint")

// corruptError means that a checkpoint is invalid. A kubelet that starts now would find the same file, and start
// without its assignments.
type corruptError struct {
	Path string
	// Offset is the byte at which parsing failed; -1 when the whole file is invalid.
	Offset int64
	Why    string
}

func (e *corruptError) Error() string {
	at := ""
	if e.Offset >= 0 {
		at = fmt.Sprintf(" at byte %d", e.Offset)
	}
	path := e.Path
	if path == "" {
		path = "checkpoint"
	}
	return fmt.Sprintf("read %s: corrupt%s: %s", path, at, e.Why)
}

// Assignment has the devices of one resource that the kubelet assigned to a container.
type Assignment struct {
	PodUID    string
	Container string
	Resource  string
	// DeviceIDs are the device plugin's IDs, sorted and unique.
	DeviceIDs []string
	// ByNUMA are the same IDs by the NUMA nodes that the plugin gave for them at the time; -1 for none. Each list is
	// sorted.
	ByNUMA map[int64][]string
	// Response is the plugin's response to Allocate; nil when it cannot be decoded.
	Response *v1beta1.ContainerAllocateResponse
	// ResponseError is the reason why Response is nil. A kubelet that starts on such an entry drops it.
	ResponseError string
}

// Checkpoint has the assignments of the kubelet's device manager, including those of init containers.
type Checkpoint struct {
	// Assignments are ordered by pod UID, container and resource.
	Assignments []Assignment
	// Registered are the healthy device IDs of each resource, sorted.
	Registered map[string][]string
	// Verified is true when the checksum is present and correct. A file without a checksum is read, but a kubelet would
	// not accept it.
	Verified bool
	// Old is true for the format of kubelets before 1.20.
	Old bool
}

// ReadCheckpoint reads the checkpoint of the kubelet whose directory (usually /var/lib/kubelet) is given. The error is
// ErrNoCheckpoint when there is no file, a *corruptError when it is invalid, and otherwise that of the file system.
func ReadCheckpoint(kubeletDir string) (*Checkpoint, error) {
	path := filepath.Join(kubeletDir, CheckpointFile)
	blob, err := readInRoot(filepath.Dir(path), filepath.Base(path), MaxCheckpoint)
	var large *tooLargeError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read %s: %w", path, ErrNoCheckpoint)
	case errors.As(err, &large):
		return nil, &corruptError{Path: path, Offset: -1, Why: large.Error()}
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	parsed, err := parseCheckpoint(blob)
	if corrupt, ok := errors.AsType[*corruptError](err); ok {
		corrupt.Path = path
	}
	return parsed, err
}

// parseCheckpoint reads a checkpoint's bytes, in the format of kubelet 1.20 and
// later or the older one. Its only error is *corruptError.
func parseCheckpoint(blob []byte) (*Checkpoint, error) {
	if len(blob) == 0 {
		return nil, &corruptError{Offset: 0, Why: "the file is empty"}
	}
	file, err := checkpoint.Decode(blob)
	if err != nil {
		return nil, explainJSON(err, blob)
	}
	if file.Sum != nil && *file.Sum != file.Want {
		return nil, &corruptError{Offset: -1, Why: fmt.Sprintf("its checksum is %d, its content has %d", *file.Sum, file.Want)}
	}
	result := &Checkpoint{Registered: map[string][]string{}, Verified: file.Sum != nil, Old: file.Old}
	for resource, ids := range file.Registered {
		result.Registered[resource] = slices.Sorted(slices.Values(ids))
	}
	for _, entry := range file.Entries {
		result.Assignments = append(result.Assignments, assignment(entry))
	}
	slices.SortStableFunc(result.Assignments, compareAssignments)
	return result, nil
}

func assignment(entry checkpoint.PodDevicesEntry) Assignment {
	result := Assignment{
		PodUID: entry.PodUID, Container: entry.ContainerName, Resource: entry.ResourceName,
		ByNUMA: map[int64][]string{},
	}
	for node, ids := range entry.DeviceIDs {
		result.ByNUMA[node] = slices.Sorted(slices.Values(ids))
		result.DeviceIDs = append(result.DeviceIDs, ids...)
	}
	slices.Sort(result.DeviceIDs)
	result.DeviceIDs = slices.Compact(result.DeviceIDs)
	response := &v1beta1.ContainerAllocateResponse{}
	if err := proto.Unmarshal(entry.AllocResp, response); err != nil {
		// The text of protobuf's errors varies between builds by design; this one does not.
		result.ResponseError = fmt.Sprintf("AllocResp of %d bytes is not a ContainerAllocateResponse", len(entry.AllocResp))
		return result
	}
	result.Response = response
	return result
}

func compareAssignments(a, b Assignment) int {
	if c := strings.Compare(a.PodUID, b.PodUID); c != 0 {
		return c
	}
	if c := strings.Compare(a.Container, b.Container); c != 0 {
		return c
	}
	return strings.Compare(a.Resource, b.Resource)
}

func explainJSON(err error, blob []byte) *corruptError {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(blob)) && strings.Contains(syntax.Error(), "unexpected end"):
		return &corruptError{Offset: syntax.Offset, Why: "the file ends in the middle"}
	case errors.As(err, &syntax):
		return &corruptError{Offset: syntax.Offset, Why: syntax.Error()}
	case errors.As(err, &mistyped):
		return &corruptError{Offset: mistyped.Offset, Why: fmt.Sprintf("%s cannot be a JSON %s", mistyped.Field, mistyped.Value)}
	}
	return &corruptError{Offset: -1, Why: err.Error()}
}

type tooLargeError struct {
	size  int64
	limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the file has %d bytes or more, the limit is %d", e.size, e.limit)
}

// readInRoot reads a regular file of at most limit bytes that lies beneath dir,
// symbolic links included.
func readInRoot(dir, name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// A pipe in place of the file would block the open forever.
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file but %s", info.Mode().Type())
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAtMost(file, info.Size(), limit)
}

// readAtMost reads to the end, or fails with *tooLargeError; hint is the likely size.
func readAtMost(reader io.Reader, hint, limit int64) ([]byte, error) {
	if hint > limit {
		return nil, &tooLargeError{size: hint, limit: limit}
	}
	blob := make([]byte, 0, hint+1)
	for {
		if len(blob) == cap(blob) {
			blob = slices.Grow(blob, 4096)
		}
		n, err := reader.Read(blob[len(blob):cap(blob)])
		blob = blob[:len(blob)+n]
		if int64(len(blob)) > limit {
			return nil, &tooLargeError{size: int64(len(blob)), limit: limit}
		}
		if errors.Is(err, io.EOF) {
			return blob, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
