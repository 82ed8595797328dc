package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/spelling"
)

// TransientError makes a call of NVML fail a number of times before it works again.
type TransientError struct {
	// Call is a call of nvml.Device, of a GPU instance or a compute instance ("GetInfo"), AllCalls, or, without a GPU,
	// a call of the library ("Init", "DeviceGetCount", "EventSetWait"). A call of a MIG device counts for its GPU.
	Call string
	// Error is the name of the return code in nvml.h without NVML_ERROR_: one of TransientErrors.
	Error string
	// Skip calls of each process succeed, then Times calls fail; Times 0 means until Clear.
	Times int
	Skip  int
}

// transient is a TransientError in the state file. ID distinguishes two injections of the same error.
type transient struct {
	ID    uint64      `json:"id"`
	Call  string      `json:"call"`
	Error nvml.Return `json:"error"`
	Times int         `json:"times,omitempty"`
	Skip  int         `json:"skip,omitempty"`
}

// returnCodes maps the names in nvml.h to the return codes that can be injected.
func returnCodes() map[string]nvml.Return {
	return map[string]nvml.Return{
		"UNINITIALIZED":           nvml.ERROR_UNINITIALIZED,
		"INVALID_ARGUMENT":        nvml.ERROR_INVALID_ARGUMENT,
		"NOT_SUPPORTED":           nvml.ERROR_NOT_SUPPORTED,
		"NO_PERMISSION":           nvml.ERROR_NO_PERMISSION,
		"NOT_FOUND":               nvml.ERROR_NOT_FOUND,
		"INSUFFICIENT_POWER":      nvml.ERROR_INSUFFICIENT_POWER,
		"DRIVER_NOT_LOADED":       nvml.ERROR_DRIVER_NOT_LOADED,
		"TIMEOUT":                 nvml.ERROR_TIMEOUT,
		"IRQ_ISSUE":               nvml.ERROR_IRQ_ISSUE,
		"GPU_IS_LOST":             nvml.ERROR_GPU_IS_LOST,
		"RESET_REQUIRED":          nvml.ERROR_RESET_REQUIRED,
		"OPERATING_SYSTEM":        nvml.ERROR_OPERATING_SYSTEM,
		"LIB_RM_VERSION_MISMATCH": nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		"IN_USE":                  nvml.ERROR_IN_USE,
		"MEMORY":                  nvml.ERROR_MEMORY,
		"INSUFFICIENT_RESOURCES":  nvml.ERROR_INSUFFICIENT_RESOURCES,
		"NOT_READY":               nvml.ERROR_NOT_READY,
		"INVALID_STATE":           nvml.ERROR_INVALID_STATE,
		"UNKNOWN":                 nvml.ERROR_UNKNOWN,
		"FUNCTION_NOT_FOUND":      nvml.ERROR_FUNCTION_NOT_FOUND,
	}
}

// TransientErrors lists the values of TransientError.Error, sorted.
func TransientErrors() []string { return slices.Sorted(maps.Keys(returnCodes())) }

// check returns an error for a call that does not exist; node is true when no GPU was named.
func (t *TransientError) check(node bool) error {
	if t.Call == "" {
		return nil
	}
	if _, ok := returnCodes()[t.Error]; !ok {
		return fmt.Errorf("transient error %q of %s: want one of %s", t.Error, t.Call, strings.Join(TransientErrors(), ", "))
	}
	if t.Times < 0 {
		return fmt.Errorf("transient error of %s, %d times: want a positive number, or none to fail until cleared", t.Call, t.Times)
	}
	if t.Skip < 0 {
		return fmt.Errorf("transient error of %s after %d calls: want 0 or more calls that succeed before the "+
			"first failure", t.Call, t.Skip)
	}
	what, example, known := "nvml.Device", "GetMigMode", slices.Concat(deviceCalls(), instanceCalls(), libraryCalls(), []string{AllCalls})
	if node {
		what, example, known = "the library", "DeviceGetCount", nodeCalls()
	}
	if slices.Contains(known, t.Call) {
		return nil
	}
	if near := spelling.Nearest(t.Call, known); near != "" {
		return fmt.Errorf("transient error of %s: no such call of %s; did you mean %q?", t.Call, what, near)
	}
	if node && slices.Contains(deviceCalls(), t.Call) {
		return fmt.Errorf("transient error of %s: no such call of the library; it is a call of a GPU, so name the GPU with --gpu", t.Call)
	}
	return fmt.Errorf("transient error of %s: no such call of %s; want the name of a call in go-nvml, such as %s", t.Call, what, example)
}

// add stores the error, if there is one, in the state of the GPU, or of the machine for calls of the library.
func (t *TransientError) add(st *state, slot int) {
	if t.Call == "" {
		return
	}
	injected := transient{ID: st.Seq + 1, Call: t.Call, Error: returnCodes()[t.Error], Times: t.Times, Skip: t.Skip}
	if slot < 0 {
		st.Transients = append(st.Transients, injected)
		return
	}
	st.GPUs[slot].Transients = append(st.GPUs[slot].Transients, injected)
}

// String describes the error; it returns "" when there is none.
func (t *TransientError) String() string {
	if t.Call == "" {
		return ""
	}
	text := fmt.Sprintf("%s returns %s", t.Call, t.Error)
	if t.Times > 0 {
		text += fmt.Sprintf(" %d times", t.Times)
	}
	if t.Skip > 0 {
		text += fmt.Sprintf(" after %d calls", t.Skip)
	}
	return text
}

// described returns the description of an injected error in the state.
func (t *transient) described() string {
	name := fmt.Sprint(int(t.Error))
	for word, ret := range returnCodes() {
		if ret == t.Error {
			name = word
		}
	}
	return (&TransientError{Call: t.Call, Error: name, Times: t.Times, Skip: t.Skip}).String()
}

// transientAnswer returns the injected error of a call, or SUCCESS when none applies.
func (l *library) transientAnswer(injected []transient, call string) nvml.Return {
	answer := nvml.SUCCESS
	for i := range injected {
		t := &injected[i]
		if t.Call != call && t.Call != AllCalls {
			continue
		}
		l.mu.Lock()
		l.seen[t.ID]++
		count := l.seen[t.ID] - t.Skip
		l.mu.Unlock()
		if count > 0 && (t.Times == 0 || count <= t.Times) && answer == nvml.SUCCESS {
			answer = t.Error
		}
	}
	return answer
}

// note counts a call for CallsOf.
func (l *library) note(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[call]++
}

// CallsOf returns how often each call of a simulated library was made, by name.
func CallsOf(simulated nvml.Interface) map[string]int {
	l, ok := simulated.(*library)
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.made)
}
