package problem

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/core/health"
)

// Severity is how bad a problem is: that of a class of faults, since an XID is a problem too.
type Severity = health.Severity

// The severities.
const (
	Info    = health.Info
	Warning = health.Warning
	Error   = health.Error
)

// Area is what a problem is about.
type Area string

// The areas, in the order in which documents list them.
const (
	AreaGPU     Area = "GPUs"
	AreaDriver  Area = "driver"
	AreaCDI     Area = "CDI"
	AreaRuntime Area = "container runtime"
	AreaKubelet Area = "kubelet"
	AreaSharing Area = "advertising and sharing"
	AreaMIG     Area = "MIG"
	AreaConfig  Area = "configuration"
	AreaAgent   Area = "agent"
	// AreaValidation is about what keeps a node from accepting pods with GPUs.
	AreaValidation Area = "validation"
)

// Areas lists the areas in that order.
func Areas() []Area {
	return []Area{AreaGPU, AreaDriver, AreaCDI, AreaRuntime, AreaKubelet, AreaSharing, AreaMIG, AreaConfig, AreaValidation, AreaAgent}
}

// Problem is an entry of the catalogue.
type Problem struct {
	// Code is the stable name.
	Code     string
	Severity Severity
	Area     Area
	// Title is the problem in a few words.
	Title string
	// Meaning describes the consequences.
	Meaning string
	// Fix is the instruction that removes the problem.
	Fix string
	// Seen lists where Berth shows it.
	Seen string
}

// Where a problem is shown.
const (
	// seenGPU is for problems of one GPU.
	seenGPU = "the GPU's health in GPUNode, berth gpus, berth trace, berth doctor NODE"
	// seenNode is for problems of the node.
	seenNode = "status.problems of GPUNode, the agent's log and /debug/state, berth doctor NODE"
	// seenGate is for problems that stop a node before it is validated.
	seenGate = "status.gate of GPUNode, the Node's condition GPUsReady, berth status"
	// seenDoctor is for problems that only the checks on the node find.
	seenDoctor = "berth doctor, on the node"
)

// XIDPattern is the entry for all codes XID1, XID2 and so on.
const XIDPattern = "XIDn"

// All lists the catalogue, by area and code.
func All() []Problem {
	list := slices.Concat(gpuProblems(), nodeProblems(), offerProblems(), draProblems(), gateProblems(), agentProblems(), checkProblems(), validationProblems())
	areas := Areas()
	slices.SortFunc(list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(slices.Index(areas, a.Area), slices.Index(areas, b.Area)), cmp.Compare(a.Code, b.Code))
	})
	return list
}

// Find returns the entry of a code. For an XID it returns the entry XIDn, completed with the XID's own meaning.
func Find(code string) (Problem, bool) {
	list := All()
	number, isXID := health.XIDOf(code)
	wanted := code
	if isXID {
		wanted = XIDPattern
	}
	at := slices.IndexFunc(list, func(p Problem) bool { return p.Code == wanted })
	if at < 0 {
		return Problem{}, false
	}
	found := list[at]
	if isXID {
		known := health.LookupXID(number)
		found.Code, found.Severity = code, known.Class.Severity()
		found.Title = fmt.Sprintf("the driver reported XID %d: %s", number, known.Meaning)
		found.Fix = known.Class.Fix()
	}
	return found, true
}
