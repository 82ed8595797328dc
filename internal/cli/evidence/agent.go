package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/core/trace"
	"github.com/berth-gpu/berth/internal/hardware/bound"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/pages"
)

// scanTimeout bounds a scan of the hardware.
const scanTimeout = 10 * time.Second

// agentState is the part of the agent's /debug/state that a trace reads.
type agentState struct {
	Node string `json:"node"`
	// Simulated is the directory of its simulated hardware; empty for a real driver.
	Simulated string `json:"simulated"`
	// Vendors are missing from the answer of an older agent.
	Vendors   []gpu.Traits     `json:"vendors"`
	Inventory *gpu.Snapshot    `json:"inventory"`
	Holdings  []ledger.Holding `json:"holdings"`
}

// agent reads the ledger and the inventory from the memory of the node's agent.
func (c *collector) agent(ctx context.Context) {
	if c.places.Agent == "" {
		c.unread(trace.Ledger, "", "no agent socket is configured")
		return
	}
	state, err := readAgent(ctx, c.places.Agent)
	if err != nil {
		c.unread(trace.Ledger, c.places.Agent, err.Error())
		return
	}
	c.local.Host = cmp.Or(c.local.Host, state.Node)
	source := trace.Source{Kind: trace.Ledger, Path: c.places.Agent}
	c.read(source)
	c.local.Vendors = c.local.Vendors.With(state.Vendors)
	for i := range state.Holdings {
		if state.Holdings[i].Holder.Kind == gpu.HolderClaim {
			c.local.Claims = append(c.local.Claims, claimHolding(source, &state.Holdings[i]))
		} else {
			c.holding(source, state.Holdings[i])
		}
	}
	// If no simulator was requested, the agent's hardware is the node's.
	if c.places.Simulated == "" || sameDir(c.places.Simulated, filepath.Join(c.places.HostRoot, state.Simulated)) {
		c.local.OfAgent, c.local.Snapshot = true, state.Inventory
	}
	c.simulated = state.Simulated
}

func readAgent(ctx context.Context, socket string) (*agentState, error) {
	text, err := pages.Client{Socket: socket}.Get(ctx, "/debug/state")
	if err != nil {
		return nil, err
	}
	state := &agentState{}
	if err := json.Unmarshal(text, state); err != nil {
		return nil, fmt.Errorf("parse the answer of %s: %w", socket, err)
	}
	return state, nil
}

// holding adds, for each container of a pod's holding, that it holds the device. A pending holding has no pod yet and
// is skipped.
func (c *collector) holding(source trace.Source, holding ledger.Holding) {
	holder := holding.Holder
	if holder.PodUID == "" {
		return
	}
	containers := holding.Containers
	if len(containers) == 0 && holder.Container != "" {
		containers = []string{holder.Container}
	}
	for _, container := range containers {
		c.local.Assignments = append(c.local.Assignments, trace.AssignmentFact{
			Source: source, Pod: trace.Ref{UID: holder.PodUID, Namespace: holder.Namespace, Name: holder.Name},
			Container: container, Resource: holder.Resource, IDs: []string{offer.DeviceID(holding.Key)},
		})
	}
}

// sameDir reports whether two paths lead to the same directory.
func sameDir(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// hardware uses the agent's inventory, whose health depends on the history that it has seen, and scans the GPUs in
// addition. If no agent answers, only the scan is used.
func (c *collector) hardware(ctx context.Context) {
	known := map[gpu.UUID]bool{}
	if c.local.Snapshot != nil {
		source := trace.Source{Kind: trace.Hardware, Path: "inventory of the agent, " + c.places.Agent}
		c.inventory(source, c.local.Snapshot)
		for _, fact := range c.local.Devices {
			known[fact.UUID] = true
		}
		if c.simulated != c.places.Simulated && c.places.Simulated == "" {
			return // the agent does not use a driver of this machine
		}
	}
	source := trace.Source{Kind: trace.Hardware, Path: c.places.HardwareName}
	snapshot, why := c.scan(ctx)
	switch {
	case why != "" && c.local.Snapshot != nil:
		return
	case why != "":
		c.unread(trace.Hardware, source.Path, why)
		return
	case c.local.Snapshot == nil:
		health.Once(snapshot, health.Rules{}, time.Now())
		c.local.Snapshot = snapshot
	}
	at := len(c.local.Devices)
	c.inventory(source, snapshot)
	c.local.Partial = append(c.local.Partial, trace.Partial{Source: source, Vendor: c.places.Hardware.Traits().Name})
	for i := range c.local.Devices[at:] {
		if fact := &c.local.Devices[at+i]; known[fact.UUID] {
			fact.Health = "" // the agent's health takes precedence
		}
	}
}

// scan reads the driver for at most scanTimeout, because a call that hangs cannot be interrupted.
func (c *collector) scan(ctx context.Context) (snapshot *gpu.Snapshot, why string) {
	if c.places.Hardware == nil {
		return nil, "there is no simulator and no agent; give --sim DIR on a simulated node"
	}
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	call := bound.Start(func() (gpu.Snapshot, error) { return c.places.Hardware.Scan(ctx) })
	if !call.Wait(ctx) {
		return nil, "the driver does not answer within " + scanTimeout.String() + "; see dmesg for NVRM lines"
	}
	found, err := call.Result()
	switch {
	case err != nil:
		return nil, err.Error()
	case !found.DriverPresent() && len(found.Faults) > 0:
		return nil, found.Faults[0].Message
	case !found.DriverPresent():
		return nil, "no driver answers"
	}
	return &found, ""
}

func (c *collector) inventory(source trace.Source, snapshot *gpu.Snapshot) {
	c.read(source)
	devices := trace.DevicesOf(source, c.local.Host, snapshot)
	namePools(devices)
	c.local.Devices = append(c.local.Devices, devices...)
}
