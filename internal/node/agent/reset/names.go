package reset

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// find returns the GPU with an index, a UUID or the beginning of one, or a PCI bus ID.
func find(snapshot *gpu.Snapshot, reference string) (*gpu.GPU, error) {
	var found []*gpu.GPU
	address, notPCI := gpu.ParsePCIAddress(reference)
	for i := range snapshot.GPUs {
		device := &snapshot.GPUs[i]
		if strconv.Itoa(device.Index) == reference || notPCI == nil && device.PCI == address ||
			len(reference) >= len("GPU-0") && strings.HasPrefix(string(device.UUID), reference) {
			found = append(found, device)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("this node has no GPU %q; it has %d GPUs (berth gpus --node-local lists them)",
			reference, len(snapshot.GPUs))
	}
	return nil, fmt.Errorf("%d GPUs of this node begin with %q; write more of the UUID", len(found), reference)
}

// since is nil for the zero time.
func since(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t)
	return &at
}
