// Package gate decides how far a node is on its way to accepting pods with GPUs, and whether it keeps them away until then.
//
// It guarantees that a node whose GPUs were in use before its gate closed is not kept from pods; that a pod which tolerates the taint
// opens nothing; that a node whose validation has failed stays closed until one passes; that a node is validated only with a key, and
// stays so for that key until a validation of it fails or its container runtime stops injecting; and that nothing of an earlier boot,
// driver or set of CDI edits counts. It is a pure computation: no clock, no input or output. It must not import anything but the standard
// library.
package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Version is that of the checks of a validation. Raise it only when they change: each node is validated again then.
const Version = 1

// Key identifies what a validation is about: the boot, the driver's version, the CDI edits that each container gets, and the version of
// the checks. Without a boot or a driver it is empty: there is nothing to validate.
func Key(boot, driver, edits string) string {
	if boot == "" || driver == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{boot, driver, edits}, "\n")))
	return fmt.Sprintf("v%d-%s", Version, hex.EncodeToString(sum[:16]))
}

// State is how far the node is; empty for a node without GPUs, and for one whose gate is off.
type State string

// The states, in their order; each includes those before it.
const (
	None         State = ""
	Found        State = "Found"
	DriverReady  State = "DriverReady"
	RuntimeReady State = "RuntimeReady"
	SpecReady    State = "SpecReady"
	Held         State = "Held"
	Validated    State = "Validated"
)

// Mode is what the gate does while the node is not validated.
type Mode string

// The modes.
const (
	Enforce  Mode = "enforce"
	Report   Mode = "report"
	Disabled Mode = "disabled"
)

// By is who validated the node.
type By string

// Who validates a node.
const (
	ByPod     By = "pod"
	ByAgent   By = "agent"
	ByTimeout By = "timeout"
)

// Codes of a node that is held.
const (
	// NoOperator: it waits for its validation for too long.
	NoOperator = "GATE_NO_OPERATOR"
	// HeldByPod: a pod that came after the taint, or after a validation that failed, holds a GPU, and a validation needs all of them.
	HeldByPod = "GATE_HELD_BY_POD"
)

// Stop is why a node does not reach the next state.
type Stop struct {
	// Code is one of the catalogue of problems; empty while the node only waits for something that is under way.
	Code string `json:"code,omitempty"`
	// Message says what it waits for, with the evidence.
	Message string `json:"message"`
}

// Settings are those of the gate.
type Settings struct {
	Mode Mode
	// Timeout is how long a held node waits for an operator, and Opens whether it accepts pods then.
	Timeout time.Duration
	Opens   bool
}

// Facts are what was observed on the node.
type Facts struct {
	// GPUs is true for a node that has GPUs, with or without a driver.
	GPUs bool
	// Driver, Runtime, Spec and Advertised are why the node is not ready; nil when it is.
	Driver     *Stop
	Runtime    *Stop
	Spec       *Stop
	Advertised *Stop
	// InUse is true while a pod that is no validation pod holds a GPU, or a part of one.
	InUse bool
	// Key is what is to be validated; empty while that is not known.
	Key string
	// Outcome is that of the last validation pod; nil before one has ended.
	Outcome *Outcome
	// Waited is how long the node has been held for this key without a validation pod.
	Waited time.Duration
}

// Outcome is how a validation pod ended.
type Outcome struct {
	// Key is what it validated.
	Key string
	// Failed is why it failed; nil when it passed.
	Failed *Stop
}

// Record is what has to be remembered, also by the next agent of the node.
type Record struct {
	// Key is what By validated; both are empty before.
	Key string `json:"key,omitempty"`
	By  By     `json:"by,omitempty"`
	// FailedKey is what was not validated, and Failed why.
	FailedKey string `json:"failedKey,omitempty"`
	Failed    *Stop  `json:"failed,omitempty"`
	// Tainted is true from the decision for the taint to that against it. A pod that gets a GPU in between has tolerated the taint.
	Tainted bool `json:"tainted,omitempty"`
}

// Closed reports whether a pod that holds a GPU leaves the node as it is: it came after the taint, or a validation has failed.
func (r Record) Closed() bool { return r.Tainted || r.Failed != nil }

// Decision is the state of the node.
type Decision struct {
	State State
	// Stop is why it is not Validated; zero for a node that is.
	Stop Stop
	By   By
	// Tainted is true when the Node must have the taint.
	Tainted bool
	// Record replaces the one that was passed to Decide.
	Record Record
}

// Decide returns the state of a node.
func Decide(s Settings, f Facts, record Record) Decision {
	record = record.with(f)
	if s.Mode != Enforce {
		record.Tainted = false
	}
	d := Decision{Record: record}
	if s.Mode == Disabled || !f.GPUs {
		return d
	}
	inUse := f.InUse && !record.Closed()
	d.reach(s, f, inUse)
	if d.State == Validated {
		d.By = d.Record.By
	}
	d.Tainted = s.Mode == Enforce && d.State != Validated && !inUse
	d.Record.Tainted = d.Tainted
	return d
}

// reach sets the state that a node with GPUs has reached. A node that is in use is validated by the agent.
func (d *Decision) reach(s Settings, f Facts, inUse bool) {
	switch record := d.Record; {
	case record.covers(f.Key) && f.Runtime == nil:
		d.State = Validated
	case f.Driver != nil:
		d.State, d.Stop = Found, *f.Driver
	case f.Runtime != nil:
		d.State, d.Stop = DriverReady, *f.Runtime
	case f.Spec != nil:
		d.State, d.Stop = RuntimeReady, *f.Spec
	case f.Advertised != nil:
		d.State, d.Stop = SpecReady, *f.Advertised
	case f.Key == "":
		d.State, d.Stop = RuntimeReady, Stop{Message: "waits until the CDI spec was read"}
	case inUse:
		d.validate(f.Key, ByAgent)
	case record.FailedKey == f.Key:
		d.State, d.Stop = Held, *record.Failed
	default:
		d.hold(s, f)
	}
}

// hold decides about a node that waits for its validation.
func (d *Decision) hold(s Settings, f Facts) {
	d.State, d.Stop = Held, Stop{Message: "waits for the validation pod of the operator"}
	if f.InUse {
		d.Stop = Stop{Code: HeldByPod, Message: "a pod that came after the gate had closed holds a GPU, and a validation needs all of them; " +
			"end that pod (berth gpus shows it)"}
		return
	}
	if f.Waited < s.Timeout {
		return
	}
	if s.Opens && d.Record.Failed == nil {
		d.validate(f.Key, ByTimeout)
		return
	}
	d.Stop = Stop{Code: NoOperator, Message: fmt.Sprintf("no operator has made a validation pod within %s; "+
		"see that berth-operator runs (kubectl -n NAMESPACE get deployment berth-operator), or set gate.onTimeout to open", s.Timeout)}
}

func (d *Decision) validate(key string, by By) {
	d.State, d.Stop = Validated, Stop{}
	d.Record.Key, d.Record.By = key, by
}

// covers reports whether what has the key is validated.
func (r Record) covers(key string) bool {
	return key != "" && r.Key == key && r.By != "" && r.Failed == nil
}

// with returns the record with the outcome of a validation pod. One of another key does not count.
func (r Record) with(f Facts) Record {
	o := f.Outcome
	if o == nil || o.Key == "" || o.Key != f.Key {
		return r
	}
	if o.Failed == nil {
		return Record{Key: o.Key, By: ByPod, Tainted: r.Tainted}
	}
	failed := *o.Failed
	return Record{FailedKey: o.Key, Failed: &failed, Tainted: r.Tainted}
}
