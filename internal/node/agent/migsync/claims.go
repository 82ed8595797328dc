package migsync

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/migapply"
)

// Ensure returns the UUID of a device of a dynamic GPU once it exists: the MIG device at the placement of a key, or the GPU
// itself, with MIG off. The caller holds the device in the ledger, before the call and until it is not needed any more. It
// fails when the GPU cannot have the device, and when ctx ends before it exists; the error says why. A step that fails is
// repeated until then: the kubelet repeats a failed prepare only after 60 to 90 s.
func (s *Syncer) Ensure(ctx context.Context, key gpu.DeviceKey, profile string) (gpu.UUID, error) {
	changed := s.rounds.Subscribe()
	defer changed.Close()
	later := s.rounds.Ask()
	why := "the attempts before it have not ended"
	for {
		if later() {
			device, reason, err := s.made(key, profile)
			if err != nil || device != "" {
				return device, err
			}
			why = reason
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the MIG change: %w: %s", ctx.Err(), why)
		case <-changed.C():
		}
	}
}

// made returns the UUID of a device that exists, as the last attempt has found it, or the reason why it does not exist yet.
func (s *Syncer) made(key gpu.DeviceKey, profile string) (id gpu.UUID, why string, err error) {
	device := s.deps.Hardware.Current().GPU(key.GPU)
	switch {
	case device == nil:
		return "", "", fmt.Errorf("GPU %s is not on this node any more: it was removed, or the driver does not list it; delete the pod and its claim to get another GPU", key.GPU)
	case !s.wanted().Dynamic[key.GPU]:
		return "", "", fmt.Errorf("the MIG devices of GPU %s do not follow from claims any more (gpus[].dynamicMIG of the configuration)", key.GPU)
	case device.MIG.ModeNeedsReset && device.MIG.Enabled == key.Whole():
		return "", "", fmt.Errorf("the MIG mode of GPU %d would have to change, which needs a reset of the GPU, and no claim causes one; delete the pod and its claim, or change the mode",
			device.Index)
	}
	statuses := s.deps.Partition.Statuses()
	at := slices.IndexFunc(statuses, func(status migapply.Status) bool { return status.UUID == key.GPU })
	if at < 0 {
		return "", "nothing is changed on the GPU while a pod has it", nil
	}
	status := &statuses[at]
	if id = status.Has(device, key, profile); id == "" && status.State == migapply.Refused {
		return "", "", errors.New(status.Message)
	}
	return id, status.Message, nil
}

// claimsChanged reports whether dynamic GPUs are to have other MIG devices than at the last attempt.
func (s *Syncer) claimsChanged() bool {
	plan := s.wanted()
	return len(plan.Dynamic) > 0 && !reflect.DeepEqual(plan.Claimed(s.deps.Ledger.Holdings()), s.claimed)
}
