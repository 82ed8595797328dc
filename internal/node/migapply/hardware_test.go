package migapply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/openers"
)

// hardware is the world as an agent's driver calls see it.
type hardware struct{ *world }

// call begins a call. It may fail, and it stops the test for calls that must never be made.
func (h hardware) call(format string, args ...any) error {
	h.mustRun()
	what := fmt.Sprintf(format, args...)
	h.trace = append(h.trace, what)
	h.grab()
	var err error
	if h.breaks != nil {
		err = h.breaks(what)
	}
	if slices.ContainsFunc(h.slow, func(prefix string) bool { return strings.HasPrefix(what, prefix) }) {
		answer := make(chan struct{})
		h.answers[gpu.UUID(strings.Fields(what)[1])] = answer
		h.clock.Step(leaveAfter)
		<-answer
	}
	return err
}

// half is a moment within a call at which the agent may be killed.
func (h hardware) half(what string) error {
	if h.point("half: " + what) {
		h.cancel()
		return h.ctx.Err()
	}
	return nil
}

// unheld stops the test when another holder has a device that is about to be removed. A claim that waits for its device does not use
// it yet.
func (h hardware) unheld(key gpu.DeviceKey, what string) {
	for _, held := range h.book.Holdings() {
		if held.Key.Overlaps(key) && held.Holder.ID != HolderID && !h.waiting[held.Holder.ID] {
			h.never("%s: %s is held by %s; %v", what, key, held, h.trace)
		}
	}
}

func (h hardware) SetMIGMode(_ context.Context, id gpu.UUID, on bool) (bool, error) {
	if err := h.call("mode %s %s", id, onOff(on)); err != nil {
		return false, err
	}
	c := h.gpuOf(id)
	if on != c.enabled {
		if len(c.instances) > 0 {
			return false, errors.New("In use")
		}
		if !slices.Contains(h.busy, id) {
			h.unheld(gpu.DeviceKey{GPU: id}, "mode")
		} else {
			return false, errors.New("In use by another client")
		}
	}
	c.pending = on
	if !c.needsReset {
		c.enabled = on
	}
	return c.enabled != c.pending, h.half("mode")
}

func (h hardware) CreateMIG(_ context.Context, id gpu.UUID, profile string, at int) error {
	if err := h.call("create %s %s %d", id, profile, at); err != nil {
		return err
	}
	c, g := h.gpuOf(id), geometry()
	p := g.Profile(profile)
	if p == nil || !slices.Contains(p.Starts, at) || !c.enabled {
		h.never("create %s at %d of %s is invalid; %v", profile, at, id, h.trace)
		return errors.New("Invalid Argument")
	}
	compute := p.ComputeSlices
	for _, in := range c.instances {
		compute += g.Profile(in.Profile).ComputeSlices
		if at < in.Start+in.Size && in.Start < at+p.Size {
			h.never("create %s at %d: %s at %d is there; %v", profile, at, in.Profile, in.Start, h.trace)
		}
	}
	if compute > g.ComputeSlices {
		h.never("create %s at %d: %d compute slices; %v", profile, at, compute, h.trace)
	}
	// The numbers follow from the place.
	made := fakeInstance{GPUInstance: gpu.GPUInstance{GI: 10*p.Size + at, Profile: profile, Start: at, Size: p.Size}, bare: true}
	c.instances = append(c.instances, made)
	slices.SortFunc(c.instances, func(a, b fakeInstance) int { return a.Start - b.Start })
	if err := h.half("instance without device"); err != nil {
		return err
	}
	for i := range c.instances {
		c.instances[i].device = c.instances[i].device || c.instances[i].GI == made.GI
	}
	return h.half("created")
}

func (h hardware) DestroyMIG(_ context.Context, id gpu.UUID, gi int) error {
	if err := h.call("destroy %s %d", id, gi); err != nil {
		return err
	}
	c := h.gpuOf(id)
	i := slices.IndexFunc(c.instances, func(in fakeInstance) bool { return in.GI == gi })
	if i < 0 {
		h.never("destroy instance %d of %s: there is none; %v", gi, id, h.trace)
		return nil
	}
	if c.instances[i].device {
		h.unheld(gpu.DeviceKey{GPU: id, MIG: c.device(c.instances[i])}, "destroy")
	}
	c.instances[i].device = false
	if err := h.half("device removed, instance present"); err != nil {
		return err
	}
	c.instances = slices.Delete(c.instances, i, i+1)
	return h.half("destroyed")
}

func (h hardware) RemoveEmptyMIG(_ context.Context, id gpu.UUID, gi int) error {
	if err := h.call("remove %s %d", id, gi); err != nil {
		return err
	}
	c := h.gpuOf(id)
	i := slices.IndexFunc(c.instances, func(in fakeInstance) bool { return in.GI == gi })
	if i < 0 {
		h.never("remove instance %d of %s: there is none; %v", gi, id, h.trace)
		return nil
	}
	if c.instances[i].device {
		return errors.New("In use by another client")
	}
	c.instances = slices.Delete(c.instances, i, i+1)
	return h.half("removed")
}

func (h hardware) Reset(_ context.Context, ids []gpu.UUID) error {
	if err := h.call("reset %v", ids); err != nil {
		return err
	}
	for _, id := range ids {
		if len(h.gpuOf(id).openers) > 0 {
			return errors.New("In use by another client")
		}
	}
	for _, id := range ids {
		h.unheld(gpu.DeviceKey{GPU: id}, "reset")
		c := h.gpuOf(id)
		c.enabled, c.instances = c.pending, nil
	}
	return h.half("reset")
}

func (h hardware) Touch(context.Context) error {
	if err := h.call("touch"); err != nil {
		return err
	}
	for _, c := range h.gpus {
		for i := range c.instances {
			c.instances[i].bare = false
		}
	}
	return h.half("touched")
}

// openers are listed before the first instance is destroyed.
func (w *world) openers(_ context.Context, id gpu.UUID) ([]openers.Opener, error) {
	if w.breaks != nil {
		if err := w.breaks("openers " + string(id)); err != nil {
			return nil, err
		}
	}
	return w.gpuOf(id).openers, nil
}

// quiesce ends what keeps a GPU busy.
func (w *world) quiesce(_ context.Context, id gpu.UUID) error {
	if err := (hardware{w}).call("quiesce %s", id); err != nil {
		return err
	}
	w.busy = slices.DeleteFunc(w.busy, func(b gpu.UUID) bool { return b == id })
	return nil
}

type inventory struct{ *world }

func (i inventory) Current() *gpu.Snapshot { return i.snapshot }

func (i inventory) Refresh(context.Context) error {
	if i.breaks != nil {
		if err := i.breaks("scan"); err != nil {
			return err
		}
	}
	i.scan()
	return nil
}

// runningLedger is the ledger, which a killed agent must not use.
type runningLedger struct {
	w *world
	*ledger.Ledger
}

func (b runningLedger) Acquire(holder gpu.Holder, keys []gpu.DeviceKey) error {
	b.w.mustRun()
	return b.Ledger.Acquire(holder, keys)
}

func (b runningLedger) Release(holder gpu.Holder, keys []gpu.DeviceKey) error {
	b.w.mustRun()
	return b.Ledger.Release(holder, keys)
}
