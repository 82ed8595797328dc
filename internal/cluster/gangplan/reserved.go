package gangplan

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Reserved is what keeps a pod from places that are reserved for a gang. The scheduler says it in the message of the pod's condition
// PodScheduled, and tools read it there.
type Reserved struct {
	// Gang is the name of the gang, Priority that of its members: pods of a higher one get the places.
	Gang     string
	Priority int32
	// Until is when the reservation ends at the latest, Before when pods have to end that get the places until then; zero where that is not
	// known, and no pod gets them by its end. Both have whole seconds.
	Until, Before time.Time
}

// String follows the name of what is reserved.
func (r Reserved) String() string {
	text := fmt.Sprintf("reserved for gang %s until %s, except for pods of a priority above %d", r.Gang, r.Until.UTC().Format(time.RFC3339), r.Priority)
	if !r.Before.IsZero() {
		text += " and pods that end before " + r.Before.UTC().Format(time.RFC3339)
	}
	return text
}

var reserved = regexp.MustCompile(`reserved for gang (\S{1,320}) until (\S+Z), except for pods of a priority above (-?\d{1,10})(?: and pods that end before (\S+Z))?`)

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
	r = Reserved{Gang: parts[1], Priority: int32(priority)}
	if r.Until, err = time.Parse(time.RFC3339, parts[2]); err != nil {
		return Reserved{}, false
	}
	if parts[4] != "" {
		if r.Before, err = time.Parse(time.RFC3339, parts[4]); err != nil {
			return Reserved{}, false
		}
	}
	return r, true
}
