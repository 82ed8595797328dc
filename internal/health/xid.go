package health

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/gpu"
)

// DefaultIgnoredXIDs are the XIDs that say nothing of a card's health, as a new set
// that the caller may change. Applications cause them, and NVIDIA's device plugin
// ignores the same: graphics engine exception, MMU fault, stopped channel, preemptive
// cleanup, video processor exception, context switch timeout.
func DefaultIgnoredXIDs() map[uint64]bool {
	return map[uint64]bool{13: true, 31: true, 43: true, 45: true, 68: true, 109: true}
}

func ignored(set map[uint64]bool, xid uint64) bool {
	if set == nil {
		set = DefaultIgnoredXIDs()
	}
	return set[xid]
}

// XIDCause is the cause that an event makes: code "XID79", since the event.
func XIDCause(event gpu.Event) gpu.Cause {
	where := ""
	if event.GI >= 0 && event.CI >= 0 {
		where = fmt.Sprintf(" on its MIG instance GI %d CI %d", event.GI, event.CI)
	}
	return gpu.Cause{
		Code:    "XID" + strconv.FormatUint(event.XID, 10),
		Message: fmt.Sprintf("the driver reported XID %d%s", event.XID, where),
		Since:   event.Time,
	}
}

// XIDOf reads the number out of a cause's code; false when the code is no XID's.
func XIDOf(code string) (uint64, bool) {
	digits, ok := strings.CutPrefix(code, "XID")
	if !ok {
		return 0, false
	}
	xid, err := strconv.ParseUint(digits, 10, 64)
	return xid, err == nil
}
