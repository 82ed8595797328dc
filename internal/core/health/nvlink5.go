package health

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

//go:embed nvlink5.csv
var nvlink5Table string

// linkRule is the class of one error of NVLink 5, which shares its XID with others (144 to 150).
type linkRule struct {
	xid   uint64
	units []string
	// status is the second word of the report.
	status uint32
	// masks and values are two forms of the first word, of older and newer drivers.
	masks  [2]uint32
	values [2]uint32
	class  Class
}

var linkRules = sync.OnceValue(func() []linkRule {
	rules, err := parseLinkRules(nvlink5Table)
	if err != nil {
		panic("parse the built-in rules of NVLink 5: " + err.Error())
	}
	return rules
})

func parseLinkRules(text string) ([]linkRule, error) {
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	var rules []linkRule
	for i, row := range rows {
		if i == 0 {
			continue
		}
		if len(row) != 8 || !Class(row[7]).known() {
			return nil, fmt.Errorf("line %d: want 8 fields, the last one of %v", i+1, Classes())
		}
		rule := linkRule{units: strings.Split(row[1], ";"), class: Class(row[7])}
		numbers := []*uint32{&rule.status, &rule.masks[0], &rule.values[0], &rule.masks[1], &rule.values[1]}
		for k, into := range numbers {
			number, err := strconv.ParseUint(row[2+k], 0, 32)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is not a number of 32 bits", i+1, row[2+k])
			}
			*into = uint32(number)
		}
		if rule.xid, err = strconv.ParseUint(row[0], 10, 64); err != nil {
			return nil, fmt.Errorf("line %d: XID %q is not a number", i+1, row[0])
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// linkReport matches the unit and the first two words, as in
// "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x004001c6 0x00000000 …)".
var linkReport = regexp.MustCompile(`([A-Z][A-Z0-9_]+) .*\(0x([0-9a-fA-F]{1,8}) 0x([0-9a-fA-F]{1,8})`)

// decode returns the class that the details of a report give; empty where they give none, and the code alone decides. The gravest
// of several rules that match counts.
func decode(code gpu.Code, detail string) Class {
	xid := code.Number
	if code.Kind != gpu.KindXID || xid < 144 || xid > 150 {
		return ""
	}
	found := linkReport.FindStringSubmatch(detail)
	if found == nil {
		return ""
	}
	info, err1 := strconv.ParseUint(found[2], 16, 32)
	status, err2 := strconv.ParseUint(found[3], 16, 32)
	if err1 != nil || err2 != nil {
		return ""
	}
	var class Class
	for _, rule := range linkRules() {
		if rule.xid != xid || rule.status != uint32(status) || !slices.Contains(rule.units, found[1]) {
			continue
		}
		for form := range rule.masks {
			if uint32(info)&rule.masks[form] == rule.values[form] && rule.class.rank() > class.rank() {
				class = rule.class
			}
		}
	}
	return class
}
