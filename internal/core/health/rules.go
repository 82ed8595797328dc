package health

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// DefaultIgnoredXIDs returns the XIDs that do not affect a GPU's health, as a new set that the caller may change. Applications cause
// them, and NVIDIA's device plugin ignores the same: graphics engine exception, MMU fault, stopped channel, preemptive cleanup,
// video processor exception, context switch timeout.
func DefaultIgnoredXIDs() map[uint64]bool {
	return map[uint64]bool{13: true, 31: true, 43: true, 45: true, 68: true, 109: true}
}

// Checks select the signals that count. The zero value is the default: all but DefaultIgnoredXIDs.
type Checks struct {
	// NoFacts ignores what scans find, NoXIDs what the driver reports. A GPU that does not answer is Gone all the same.
	NoFacts bool
	NoXIDs  bool
	// Ignored are XIDs besides DefaultIgnoredXIDs that do not count.
	Ignored map[uint64]bool
	// Enabled are XIDs that always count.
	Enabled map[uint64]bool
}

// ParseChecks parses DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS of NVIDIA's device plugin: lists of XIDs separated by
// commas, or the words xids (every XID) and all (every check). Enabled ones take precedence.
func ParseChecks(disable, enable string) (Checks, error) {
	off, err := parseCheckList("DP_DISABLE_HEALTHCHECKS", disable)
	if err != nil {
		return Checks{}, err
	}
	on, err := parseCheckList("DP_ENABLE_HEALTHCHECKS", enable)
	if err != nil {
		return Checks{}, err
	}
	checks := Checks{
		NoFacts: off.all && !on.all, NoXIDs: off.xids && !on.xids,
		Ignored: off.codes, Enabled: on.codes,
	}
	if on.xids {
		checks.Ignored = nil
		for code := range DefaultIgnoredXIDs() {
			if !off.codes[code] {
				checks.enable(code)
			}
		}
		for code := range off.codes {
			if !checks.Enabled[code] {
				checks.ignore(code)
			}
		}
	}
	return checks, nil
}

func (c *Checks) enable(code uint64) {
	if c.Enabled == nil {
		c.Enabled = map[uint64]bool{}
	}
	c.Enabled[code] = true
}

func (c *Checks) ignore(code uint64) {
	if c.Ignored == nil {
		c.Ignored = map[uint64]bool{}
	}
	c.Ignored[code] = true
}

// checkList is one of the two variables.
type checkList struct {
	all   bool
	xids  bool
	codes map[uint64]bool
}

func parseCheckList(name, text string) (checkList, error) {
	var list checkList
	for word := range strings.SplitSeq(text, ",") {
		word = strings.ToLower(strings.TrimSpace(word))
		switch word {
		case "":
			continue
		case "all":
			list.all, list.xids = true, true
			continue
		case "xids":
			list.xids = true
			continue
		}
		code, err := strconv.ParseUint(word, 10, 32)
		if err != nil || code == 0 {
			return checkList{}, fmt.Errorf("read %s: %q is not an XID; want all, xids, or XIDs separated by commas, as in 13,31", name, word)
		}
		if list.codes == nil {
			list.codes = map[uint64]bool{}
		}
		list.codes[code] = true
	}
	return list, nil
}

// ignores reports whether an XID does not count.
func (c *Checks) ignores(code uint64) bool {
	if c.Enabled[code] {
		return false
	}
	return c.NoXIDs || c.Ignored[code] || DefaultIgnoredXIDs()[code]
}

// Overrides are classes by the code of a cause ("XID94", "NVLINK_DOWN") that replace those of the catalogue.
type Overrides map[string]Class

// Check returns an error for an override of an unknown code or class.
func (o Overrides) Check() error {
	for _, code := range slices.Sorted(maps.Keys(o)) {
		_, xid := XIDOf(code)
		if !xid && !slices.ContainsFunc(Facts(), func(f Fact) bool { return f.Code == code }) {
			return fmt.Errorf("override the class of %s: no such cause exists; want XID and a number, or a code such as ECC_DOUBLE_BIT", code)
		}
		if !o[code].known() {
			return fmt.Errorf("override the class of %s: %q is not a class; want one of %v", code, o[code], Classes())
		}
	}
	return nil
}

// Rules are what an operator can configure about verdicts. The zero value is the default.
type Rules struct {
	Checks    Checks
	Overrides Overrides
}

// classOfXID returns the class of an XID under the rules. decoded is the class from its details; empty for none.
func (r *Rules) classOfXID(code uint64, decoded Class) Class {
	if class, ok := r.Overrides[XIDCode(code)]; ok {
		return class
	}
	if r.Checks.ignores(code) {
		return Ignore
	}
	class := LookupXID(code).Class
	if decoded != "" {
		class = decoded
	}
	if class == Ignore && r.Checks.Enabled[code] {
		return Inspect
	}
	return class
}

// XIDCode returns the code of an XID's cause, such as "XID79".
func XIDCode(xid uint64) string { return "XID" + strconv.FormatUint(xid, 10) }

// XIDOf returns the number of an XID from a cause's code; false when the code is not an XID's.
func XIDOf(code string) (uint64, bool) {
	digits, ok := strings.CutPrefix(code, "XID")
	if !ok {
		return 0, false
	}
	xid, err := strconv.ParseUint(digits, 10, 64)
	return xid, err == nil
}
