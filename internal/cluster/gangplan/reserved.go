package gangplan

import (
	"fmt"
	"regexp"
	"strconv"
)

// Reserved is what keeps a pod from places that are reserved for a gang. The scheduler says it in the message of the pod's condition
// PodScheduled, and tools read it there.
type Reserved struct {
	// Gang is the name of the gang, Priority that of its members: pods of a higher one get the places.
	Gang     string
	Priority int32
	// Until is when the reservation ends at the latest, Before when pods have to end that get the places until then; it is empty where that
	// is not known, and no pod gets them by its end. Both are as Kubernetes writes times, in UTC.
	Until  string
	Before string
}

// String follows the name of what is reserved.
func (r Reserved) String() string {
	text := fmt.Sprintf("reserved for gang %s until %s, except for pods of a priority above %d", r.Gang, r.Until, r.Priority)
	if r.Before != "" {
		text += " and pods that end before " + r.Before
	}
	return text
}

const timePattern = `(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)`

var reserved = regexp.MustCompile(`reserved for gang (\S{1,320}) until ` + timePattern + `, except for pods of a priority above (-?\d{1,10})(?: and pods that end before ` + timePattern + `)?`)

// ReservedIn returns the first reservation of which a message tells, and false for one that tells of none.
func ReservedIn(message string) (r Reserved, found bool) {
	parts := reserved.FindStringSubmatch(message)
	if parts == nil {
		return Reserved{}, false
	}
	priority, err := strconv.ParseInt(parts[3], 10, 32)
	if err != nil {
		return Reserved{}, false
	}
	return Reserved{Gang: parts[1], Until: parts[2], Priority: int32(priority), Before: parts[4]}, true
}
