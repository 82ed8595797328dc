package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/ledger"
	"github.com/berth-gpu/berth/internal/pages"
	"github.com/berth-gpu/berth/internal/trace"
)

// agentState is the part of the agent's /debug/state that a trace reads.
type agentState struct {
	Node      string           `json:"node"`
	Inventory *gpu.Snapshot    `json:"inventory"`
	Holdings  []ledger.Holding `json:"holdings"`
}

// agent reads the ledger and the inventory as the node's agent has them in memory.
func (c *collector) agent(ctx context.Context) {
	if c.places.Agent == "" {
		c.unread(trace.Ledger, "", "no socket of the agent was given")
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
	for _, holding := range state.Holdings {
		c.holding(source, holding)
	}
	if state.Inventory != nil {
		c.local.Snapshot = state.Inventory
	}
}

func readAgent(ctx context.Context, socket string) (*agentState, error) {
	text, err := pages.Client{Socket: socket}.Get(ctx, "/debug/state")
	if err != nil {
		return nil, err
	}
	state := &agentState{}
	if err := json.Unmarshal(text, state); err != nil {
		return nil, fmt.Errorf("understand the answer of %s: %w", socket, err)
	}
	return state, nil
}

// holding says for each container of a pod's holding that it holds the device. A
// pending one has no pod yet and says nothing.
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
			Source: source, Pod: trace.Ref{UID: holder.PodUID, Namespace: holder.Namespace, Name: holder.Pod},
			Container: container, Resource: holder.Resource, IDs: []string{deviceID(holding.Key)},
		})
	}
}

// deviceID is the kubelet's name for a key: shares count from 0 there.
func deviceID(key gpu.DeviceKey) string {
	id := string(key.Device())
	if key.Share > 0 {
		id += "::" + strconv.Itoa(key.Share-1)
	}
	return id
}

// hardware scans the cards, or takes the agent's last scan where there is nothing to
// scan with. A scan that failed leaves the agent's, too.
func (c *collector) hardware(ctx context.Context) {
	source := trace.Source{Kind: trace.NVML, Path: c.places.HardwareName}
	if c.places.Hardware != nil {
		snapshot, err := c.places.Hardware.Scan(ctx)
		if err == nil && snapshot.Driver.Present() {
			c.local.Snapshot = &snapshot
			c.inventory(source)
			return
		}
		reason := "no driver answers"
		if err != nil {
			reason = err.Error()
		}
		if c.local.Snapshot == nil {
			c.unread(trace.NVML, source.Path, reason)
			return
		}
	}
	if c.local.Snapshot == nil {
		c.unread(trace.NVML, "", "there is no simulator and no agent to ask; give --sim DIR on a simulated node")
		return
	}
	source.Path = "inventory of the agent, " + c.places.Agent
	c.inventory(source)
}

func (c *collector) inventory(source trace.Source) {
	c.read(source)
	c.local.Devices = append(c.local.Devices, trace.DevicesOf(source, c.local.Host, c.local.Snapshot)...)
}
