package health

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

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
		if !Class(row[2]).known() {
			return nil, fmt.Errorf("line %d: class %q; want one of %v", i+1, row[2], Classes())
		}
		table = append(table, XID{Code: code, Mnemonic: row[1], Class: Class(row[2]), Meaning: row[3]})
	}
	return table, nil
}
