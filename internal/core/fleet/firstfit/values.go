package firstfit

import "errors"

// ErrNotSimple is wrapped by the errors about what cannot be predicted.
var ErrNotSimple = errors.New("not of the simple form")

// MaxDevices is how many devices one claim can have.
const MaxDevices = 32

// MaxCounter is the largest value of a counter, and the largest amount of one that a device can take.
const MaxCounter = 1 << 50

// ID names a device in its cluster.
type ID struct {
	Driver string
	Pool   string
	Device string
}

// Kind is the type of an attribute's value.
type Kind uint8

// The kinds. No value of kind Other is equal to any.
const (
	Other Kind = iota
	String
	Version
	Int
	Bool
)

// Value is that of an attribute: Text of a String and a Version, Number of an Int, and of a Bool 0 or 1.
type Value struct {
	Kind   Kind
	Text   string
	Number int64
}

// Amount is what a device takes of a counter.
type Amount struct {
	Set     string
	Counter string
	Amount  int64
}

// Device is one of a slice.
type Device struct {
	Name string
	// Attributes are by name, with the domain: those of the driver, too.
	Attributes map[string]Value
	// Counted devices take counters; Consumes says which.
	Counted  bool
	Consumes []Amount
	// GPU is the UUID of the device's GPU, if it is known. Whole devices are all of it.
	GPU   string
	Whole bool
	// Special says why the choice of the device cannot be predicted; empty when it can.
	Special string
}

// Slice has the devices of a ResourceSlice. Elsewhere: they are for other nodes, and matter only for the counters that they take.
type Slice struct {
	Devices   []Device
	Elsewhere bool
}

// CounterSet has the counters of a set with their values.
type CounterSet struct {
	Name     string
	Counters map[string]int64
}

// Pool has the current slices of a pool.
type Pool struct {
	Driver string
	Name   string
	// Slices are in the order of their names; those with counter sets are left out.
	Slices []Slice
	Sets   []CounterSet
	// Incomplete pools have slices that are missing. Nothing is allocated from them.
	Incomplete bool
	// Special says why nothing that is allocated from the pool can be predicted; empty when it can.
	Special string
}

// Verdict says whether a device can be allocated to a request, as far as that does not depend on what else is allocated.
type Verdict uint8

// The verdicts.
const (
	// No: a selector does not select it, or it is for another node.
	No Verdict = iota
	// Yes: the selectors select it, and the request tolerates its taints.
	Yes
	// Tainted: the selectors select it, and it has a taint that the request does not tolerate.
	Tainted
	// Fails: a selector cannot be evaluated for it. The allocator gives up when it reaches the device.
	Fails
)

// Request is for Count devices. Verdicts has one for each device of the node.
type Request struct {
	Name     string
	Count    int
	Verdicts []Verdict
}

// Constraint: the devices of its requests have the attribute, with one value. No requests are all.
type Constraint struct {
	Attribute string
	Requests  []string
}

// Claim is one that is to be allocated.
type Claim struct {
	Requests    []Request
	Constraints []Constraint
}

// Outcome is that of a prediction.
type Outcome uint8

// The outcomes.
const (
	// Unknown: the allowed steps were not enough.
	Unknown Outcome = iota
	// Fits: each request gets its devices.
	Fits
	// DoesNotFit: no set of devices serves all requests.
	DoesNotFit
	// Aborted: the allocator gives up, since a selector cannot be evaluated.
	Aborted
)

// Pick is a device that a request gets: positions in the list of claims, in the requests of the claim, and in the node's devices.
type Pick struct {
	Claim   int
	Request int
	Device  int
}

// Counts says how many devices there are for a request. Matching are those that its selectors select; Tainted, Held and Short are
// how many of them cannot be allocated, each counted once: for a taint, because a claim holds them, or because claims hold devices
// of the same GPU. Free are the others.
type Counts struct {
	Claim    int
	Request  int
	Matching int
	Tainted  int
	Held     int
	Short    int
	Free     int
}

// Result is a prediction.
type Result struct {
	Outcome Outcome
	// Picks are in the order of the allocation; there are some only if the outcome is Fits.
	Picks []Pick
	// Counts has one entry per request, in order.
	Counts []Counts
	// Steps is how many devices were tried.
	Steps int
}
