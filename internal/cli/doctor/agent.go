package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/phrase"
	"github.com/berth-gpu/berth/internal/node/pages"
)

const (
	checkAgent = "agent"
	checkGPUs  = "GPUs"
	defaultMPS = "/run/berth/mps"
)

// agentAnswer is the content of the agent's pages.
type agentAnswer struct {
	// err says why there is no answer; ready is "yes" or what the agent waits for.
	err   error
	Ready string `json:"ready"`
	Node  string `json:"node"`
	// Inventory is nil before the first scan.
	Inventory *gpu.Snapshot `json:"inventory"`
	Problems  []gpu.Cause   `json:"problems"`
	Config    struct {
		Config *v1alpha1.AgentConfig `json:"config"`
	} `json:"config"`
}

// withoutCDI returns the reason why CDI is not used on this node; empty when it may be used.
func (a *agentAnswer) withoutCDI() string {
	config := a.Config.Config
	if config == nil || config.UsesCDI() {
		return ""
	}
	return "the agent's configuration gives devices to containers without CDI (deviceListStrategy)"
}

// askAgent reads /debug/state.
func (c *checker) askAgent(ctx context.Context) {
	if c.deps.Agent == "" {
		return
	}
	text, err := pages.Client{Socket: c.deps.Agent}.Get(ctx, "/debug/state")
	if err == nil {
		if err = json.Unmarshal(text, &c.agentSays); err != nil {
			err = fmt.Errorf("parse the answer of %s: %w", c.deps.Agent, err)
		}
	}
	c.agentSays.err = err
	c.out.Node = cmp.Or(c.out.Node, c.agentSays.Node)
}

func (c *checker) mpsRoot() string {
	if config := c.agentSays.Config.Config; config != nil && config.MPSRoot != "" {
		return config.MPSRoot
	}
	return cmp.Or(c.deps.MPSRoot, defaultMPS)
}

// agent reports the state of the agent, and the problems of its GPUs.
func (c *checker) agent() {
	if c.deps.Agent == "" {
		c.notChecked(checkAgent, "no agent socket is configured")
		return
	}
	says := &c.agentSays
	if says.err != nil {
		c.problem(checkAgent, "AGENT_UNREACHABLE", "%v", says.err)
		return
	}
	if says.Ready == "yes" {
		c.ok(checkAgent, "%s: ready", c.deps.Agent)
	} else {
		c.problem(checkAgent, "AGENT_NOT_READY", "%s: %s", c.deps.Agent, cmp.Or(says.Ready, "its readiness is unknown"))
	}
	for _, cause := range says.Problems {
		c.problem(checkAgent, cause.Code, "%s", cause.Message)
	}
	if says.Inventory == nil {
		return
	}
	bad := 0
	for _, g := range says.Inventory.GPUs {
		if len(g.Health.Causes) > 0 {
			bad++
		}
		for _, cause := range g.Health.Causes {
			c.problem(checkGPUs, cause.Code, "GPU %d (%s): %s", g.Index, g.UUID, cause.Message)
		}
		for _, device := range g.MIG.Devices {
			for _, cause := range device.Health.Causes {
				if slices.ContainsFunc(g.Health.Causes, func(whole gpu.Cause) bool { return whole.Code == cause.Code }) {
					continue // a fault of the whole GPU is listed in both
				}
				bad++
				c.problem(checkGPUs, cause.Code, "MIG device %d:%d (%s): %s", g.Index, device.Index, device.UUID, cause.Message)
			}
		}
	}
	if bad == 0 {
		c.ok(checkGPUs, "%s without problems", phrase.Count(len(says.Inventory.GPUs), "GPU"))
	}
}

// uuids formats the UUIDs of GPUs, sorted, for comparing and printing.
func uuids(list []string) string {
	slices.Sort(list)
	return strings.Join(list, ", ")
}
