package drasync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// readyWithin bounds the wait for a device that containers cannot use yet. The kubelet ends a prepare after 45 s.
const readyWithin = 20 * time.Second

// ready returns when containers can use the device, with nil, or with the reason why they cannot at the end of readyWithin or ctx.
// It waits because the kubelet repeats a failed prepare only after 60 to 90 s.
func (s *Syncer) ready(ctx context.Context, id gpu.UUID) (err error) {
	defer func() {
		if err != nil {
			err = &notReadyError{err}
		}
	}()
	settled, injection := s.deps.Devices.SubscribeSettled(), s.deps.Devices.Subscribe()
	defer settled.Close()
	defer injection.Close()
	end := s.deps.Clock.After(readyWithin)
	for {
		why := s.notReady(id)
		if why == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return why
		case <-end:
			return why
		case <-settled.C():
		case <-injection.C():
		}
	}
}

// sliced returns when a GPU has the time slice of its claim, or with the reason why it does not at the end of readyWithin or ctx.
func (s *Syncer) sliced(ctx context.Context, id gpu.UUID, slice string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := s.deps.Changes.Sliced(ctx, id, slice); err != nil {
		return &notReadyError{err}
	}
	return nil
}

// client returns the CDI names of the MPS daemon of a GPU once a container of its claim can be a client, or none when the claim wants no
// daemon and none runs on the GPU; else the reason why that is not so at the end of readyWithin or ctx.
func (s *Syncer) client(ctx context.Context, id gpu.UUID, limits gpu.MPSLimits) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	injection := s.deps.Devices.Subscribe()
	defer injection.Close()
	if err := s.deps.Changes.Daemon(ctx, id, limits); err != nil {
		return nil, &notReadyError{err}
	}
	if !limits.Wanted() {
		return nil, nil
	}
	for {
		has, why := s.deps.CDI.MPS(id)
		if why == "" {
			return has.CDIDevices, nil
		}
		select {
		case <-ctx.Done():
			return nil, &notReadyError{errors.New(why)}
		case <-injection.C():
		}
	}
}

// notReady returns why containers cannot use the device now. A MIG device of a dynamic GPU is ready when its GPU is and the CDI spec has
// the MIG device.
func (s *Syncer) notReady(id gpu.UUID) error {
	of, part := s.deps.Hardware.Current().Device(id)
	for _, device := range s.deps.Devices.Current() {
		key, injectable := device.Key, !device.NotInjectable
		if part != nil && device.Use.DynamicMIG && device.Key.GPU == of.UUID {
			key.MIG = id
			injectable = s.deps.CDI.Injectable(of.Vendor, key)
		}
		switch {
		case key.Device() != id:
		case device.NotReady != "":
			return errors.New(device.NotReady)
		case !injectable:
			return fmt.Errorf("the container runtime cannot inject %s yet: the CDI spec on disk does not have it", id)
		default:
			return nil
		}
	}
	return fmt.Errorf("the node does not offer %s now", id)
}
