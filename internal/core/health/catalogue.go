package health

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Class is the remedy for a fault. It decides the verdict on the device that has the fault.
type Class string

// The classes.
const (
	// Ignore does not affect the device's health.
	Ignore Class = "ignore"
	// Degrade reports the fault; the device can still be allocated.
	Degrade Class = "degrade"
	// RestartApp ends the application; the device is healthy once the driver reports that nothing needs repair.
	RestartApp Class = "restart-app"
	// Drain requires a reset once the GPU is free; the device is not allocated to new pods.
	Drain Class = "drain"
	// Inspect requires a person to examine the device.
	Inspect Class = "inspect"
	// Reset requires a reset of the GPU, Reboot a restart of the node.
	Reset  Class = "reset"
	Reboot Class = "reboot"
)

// Classes returns all classes, mildest first.
func Classes() []Class { return []Class{Ignore, Degrade, RestartApp, Drain, Inspect, Reset, Reboot} }

// state returns the verdict on a device that has a fault of the class.
func (c Class) state() gpu.State {
	switch c {
	case Ignore:
		return gpu.Healthy
	case Degrade:
		return gpu.Degraded
	case Drain:
		return gpu.Draining
	case Reset:
		return gpu.NeedsReset
	case Reboot:
		return gpu.NeedsReboot
	}
	return gpu.Unhealthy
}

// wholeGPU reports whether a fault of the class concerns the whole GPU wherever in the GPU it happened: a reset affects every
// MIG device.
func (c Class) wholeGPU() bool { return c == Drain || c.needsRepair() }

// needsRepair reports whether the fault persists until the hardware is reset.
func (c Class) needsRepair() bool { return c == Reset || c == Reboot }

// XID is an entry of the catalogue: an error code of the driver.
type XID struct {
	Code     uint64
	Mnemonic string
	Class    Class
	// Meaning describes the error in a few words.
	Meaning string
}

//go:embed xids.csv
var xidTable string

var catalogue = sync.OnceValue(func() []XID {
	table, err := parseXIDs(xidTable)
	if err != nil {
		panic("parse the built-in table of XIDs: " + err.Error())
	}
	return table
})

// XIDs returns the catalogue in the order of the codes. The caller may change the slice.
func XIDs() []XID { return slices.Clone(catalogue()) }

// LookupXID returns the entry of a code. A code that is not in the catalogue requires inspection: it may be harmful.
func LookupXID(code uint64) XID {
	table := catalogue()
	at, ok := slices.BinarySearchFunc(table, code, func(x XID, code uint64) int {
		switch {
		case x.Code < code:
			return -1
		case x.Code > code:
			return 1
		}
		return 0
	})
	if ok {
		return table[at]
	}
	return XID{Code: code, Class: Inspect, Meaning: "a code that is not in the catalogue"}
}

// parseXIDs parses rows of code, mnemonic, class and meaning, below a header, in ascending order of the codes.
func parseXIDs(text string) ([]XID, error) {
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	var table []XID
	for i, row := range rows {
		if i == 0 {
			continue
		}
		if len(row) != 4 {
			return nil, fmt.Errorf("line %d: %d fields; want 4", i+1, len(row))
		}
		code, err := strconv.ParseUint(row[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d: code %q is not a number", i+1, row[0])
		}
		if len(table) > 0 && table[len(table)-1].Code >= code {
			return nil, fmt.Errorf("line %d: code %d is out of order", i+1, code)
		}
		if !slices.Contains(Classes(), Class(row[2])) {
			return nil, fmt.Errorf("line %d: class %q; want one of %v", i+1, row[2], Classes())
		}
		table = append(table, XID{Code: code, Mnemonic: row[1], Class: Class(row[2]), Meaning: row[3]})
	}
	return table, nil
}

// recover says in a sentence what clears an XID of the class.
func (c Class) recover() string {
	switch c {
	case RestartApp:
		return "Restart what used the device; it is advertised as healthy again once a scan finds nothing to repair."
	case Drain:
		return "Let the pods that use the GPU end, then reset it: berth reset."
	case Reset:
		return "Reset the GPU: berth reset. It is advertised as healthy again once a scan after the reset finds nothing to repair."
	case Reboot:
		return "Reboot the node."
	}
	return "Have the hardware and the driver examined; the device is advertised as healthy again once a scan finds nothing to repair, or after a reset."
}
