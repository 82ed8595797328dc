// Package apichoice chooses the API for the GPUs whose rule has allocation.api auto, once for the node.
//
// It guarantees that a choice is on disk before it is in force; that it does not change by itself, also over a restart, an upgrade and a
// reboot, and ends only when no rule has auto any more; and that DRA is chosen only while no pod holds one of these GPUs, or where
// ResourceSlices or claims have them already, so that a lost file leads to the API in which the GPUs are. Until the choice none of the
// node's devices is newly advertised.
//
// What wakes it: the configuration; while no choice can be made, a timer. What it writes: api-choice.json, an event and the problems of
// the source "api choice". It waits for the API server and the disk; no other actor waits for it.
//
// It must not import the agent, another package below it, an adapter or a front end.
package apichoice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/config"
	"github.com/berth-gpu/berth/internal/node/configwatch"
	"github.com/berth-gpu/berth/internal/node/ledger"
	"github.com/berth-gpu/berth/internal/node/nodeapi"
	"github.com/berth-gpu/berth/internal/node/offer"
	"github.com/berth-gpu/berth/internal/node/signal"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// FileName is the name of the file with the choice.
const FileName = "api-choice.json"

const (
	// source is the source of the problems, and fileSource of those with the file.
	source     = "api choice"
	fileSource = "api-choice-file"
	// firstRetry and lastRetry bound the time between two attempts.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// callTimeout bounds a call to the API server.
	callTimeout = 10 * time.Second
	// named is how many holders a reason names.
	named = 3
)

// apiChoice is the API for the rules with auto.
type apiChoice struct {
	API offer.API `json:"api"`
	// Reason says why.
	Reason string `json:"reason"`
	// At is when it was chosen.
	At time.Time `json:"at"`
}

// Config is the node's configuration.
type Config interface {
	Current() configwatch.State
	Subscribe() *signal.Subscription
	NodeUID() string
}

// Ledger is who holds what.
type Ledger interface {
	Holdings() []ledger.Holding
	// Writes reports whether this agent is the one of the node that writes the ledger.
	Writes() bool
}

// Inventory is the hardware of the vendor that the rules are about.
type Inventory interface{ Current() *gpu.Snapshot }

// Deps are the dependencies of a Chooser.
type Deps struct {
	// Dir is the folder of the file, which outlives a reboot.
	Dir      string
	Config   Config
	Ledger   Ledger
	Hardware Inventory
	// Published returns the GPUs that ResourceSlices may have.
	Published func() []gpu.UUID
	// HasClass reports whether the cluster has the DeviceClass for whole GPUs, of this name. Nil without an API server.
	HasClass  func(context.Context) (bool, error)
	ClassName string
	// Chosen is called when a choice is in force. It must not block for long.
	Chosen func()
	Event  func(nodeapi.Event)
	// FileLost reports a file that could not be used, with the consequences.
	FileLost func(source string, result statefile.Result, without string)
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Fault is called at each step of a write of the file; an error stops it there. For tests; nil for nothing.
	Fault func(statefile.Step) error
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Chooser is the actor. Create it with New, start it with Run when the ledger was compared with the node.
type Chooser struct {
	deps   Deps
	chosen atomic.Pointer[apiChoice]
}

// New reads the choice of an earlier agent.
func New(deps Deps) *Chooser {
	c := &Chooser{deps: deps}
	c.load()
	return c
}

// Remove removes the file. It is no error when there is none.
func Remove(dir string) error { return statefile.Remove(filepath.Join(dir, FileName)) }

// Kept returns the choice in a folder; it is the device plugin where there is none.
func Kept(dir string) offer.API {
	kept, result := file(dir, "").Read()
	if result.Lost() {
		return offer.DevicePlugin
	}
	return kept.API
}

func file(dir, nodeUID string) statefile.File[apiChoice] {
	return statefile.File[apiChoice]{
		Path: filepath.Join(dir, FileName), What: "the API for the rules with auto", Format: "berth-api-choice", Version: 1, NodeUID: nodeUID,
	}
}

func (c *Chooser) file() statefile.File[apiChoice] {
	f := file(c.deps.Dir, c.deps.Config.NodeUID())
	f.Fault = c.deps.Fault
	return f
}

// errFollows is the error of an agent that does not write the ledger: the one that does chooses, or ends the choice.
var errFollows = errors.New("another agent of the node is in charge")

// load takes the choice of the file, if it has one.
func (c *Chooser) load() (found bool) {
	kept, result := c.file().Load()
	if result.Lost() {
		c.deps.FileLost(fileSource, result, "the API for GPUs with allocation.api auto is chosen again, by where they are")
	}
	if kept.At.IsZero() {
		return false
	}
	c.chosen.Store(&kept)
	return true
}

// API returns the API for the rules with auto; known is false until it is chosen. It only reads memory.
func (c *Chooser) API() (api offer.API, known bool) {
	if choice := c.chosen.Load(); choice != nil {
		return choice.API, true
	}
	return offer.DevicePlugin, false
}

// Run chooses when a rule has auto, and forgets the choice when none has, until ctx ends.
func (c *Chooser) Run(ctx context.Context) error {
	changed := c.deps.Config.Subscribe()
	defer changed.Close()
	wait := firstRetry
	for {
		var again <-chan time.Time
		switch err := c.step(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			c.deps.Report(source)
			wait = firstRetry
		default:
			if !errors.Is(err, errFollows) {
				c.deps.Report(source, gpu.Cause{Code: "API_NOT_CHOSEN", Message: fmt.Sprintf(
					"the API for the GPUs with allocation.api auto is not chosen, and no device of the node is newly advertised: %v; the agent tries again", err)})
			}
			again = c.deps.Clock.After(wait)
			wait = min(2*wait, lastRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed.C():
		case <-again:
		}
	}
}

// step makes one attempt. The error says why there is no choice yet.
func (c *Chooser) step(ctx context.Context) error {
	now := c.deps.Config.Current()
	_, known := c.API()
	switch auto := config.HasAuto(now.Config); {
	case now.Waiting || auto == known:
		return nil
	case !c.deps.Ledger.Writes():
		return errFollows
	case !auto:
		return c.forget()
	}
	if c.load() { // The agent before this one has chosen.
		c.deps.Chosen()
		return nil
	}
	choice, err := c.choose(ctx, now)
	if err != nil {
		return err
	}
	if err := c.file().Save(choice); err != nil {
		return err
	}
	c.chosen.Store(&choice)
	c.deps.Report(fileSource)
	name := string(cmp.Or(choice.API, offer.API(v1alpha1.AllocationDevicePlugin)))
	c.deps.Log.Info("Chose the API for the rules with auto", "api", name, "reason", choice.Reason)
	c.deps.Event(nodeapi.APIChosen(name, choice.Reason))
	c.deps.Chosen()
	return nil
}

// forget ends the choice.
func (c *Chooser) forget() error {
	if err := Remove(c.deps.Dir); err != nil {
		return err
	}
	c.chosen.Store(nil)
	c.deps.Log.Info("Ended the choice of an API, since no rule has auto")
	return nil
}

// choose returns the API for the GPUs of rules with auto.
func (c *Chooser) choose(ctx context.Context, now configwatch.State) (apiChoice, error) {
	snapshot := c.deps.Hardware.Current()
	if !snapshot.DriverPresent() {
		return apiChoice{}, fmt.Errorf("the GPUs are not known, since the driver does not respond")
	}
	auto := map[gpu.UUID]bool{}
	for id, rule := range offer.DecidingRules(snapshot, config.OfferSettings(now.Config, offer.DevicePlugin).GPUs) {
		auto[id] = config.IsAuto(&now.Config.GPUs[rule])
	}
	choice := func(api offer.API, format string, args ...any) (apiChoice, error) {
		return apiChoice{API: api, Reason: fmt.Sprintf(format, args...), At: c.deps.Clock.Now().UTC()}, nil
	}
	if slices.ContainsFunc(c.deps.Published(), func(id gpu.UUID) bool { return auto[id] }) {
		return choice(offer.DRA, "ResourceSlices have GPUs of the node")
	}
	var claims, others []string
	for _, held := range c.deps.Ledger.Holdings() {
		switch {
		case !auto[held.Key.GPU] || held.Holder.Kind == gpu.HolderMaintenance:
		case held.Holder.Kind == gpu.HolderClaim:
			claims = append(claims, held.Holder.String())
		default:
			others = append(others, held.Holder.String())
		}
	}
	switch {
	case len(others) > 0:
		return choice(offer.DevicePlugin, "%s", holding(others))
	case len(claims) > 0:
		return choice(offer.DRA, "%s", holding(claims))
	case c.deps.HasClass == nil:
		return choice(offer.DevicePlugin, "the agent has no API server")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := c.deps.HasClass(ctx)
	switch {
	case err != nil:
		return apiChoice{}, fmt.Errorf("read DeviceClass %s: %w", c.deps.ClassName, err)
	case found:
		return choice(offer.DRA, "no pod holds a GPU, and the cluster has DeviceClass %s", c.deps.ClassName)
	}
	return choice(offer.DevicePlugin, "the cluster has no DeviceClass %s that the agent can read (berth classes; rights.dra of the chart)", c.deps.ClassName)
}

// holding names the first holders.
func holding(holders []string) string {
	slices.Sort(holders)
	holders = slices.Compact(holders)
	if more := len(holders) - named; more > 0 {
		holders = append(holders[:named:named], fmt.Sprintf("%d more", more))
	}
	return strings.Join(holders, ", ") + " hold GPUs"
}
