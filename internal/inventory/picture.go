package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/gpu"
	"github.com/berth-gpu/berth/internal/health"
)

// picture joins scans and events into snapshots. It does no I/O and reads no clock, so
// that all of it can be tested without goroutines.
type picture struct {
	ignored map[uint64]bool
	// scan is the last scan that returned, with health as the adapter saw it.
	scan gpu.Snapshot
	// health holds the standing verdict of each card in scan.
	health map[gpu.UUID]gpu.Health
	// recent is the last event of each card and XID. An event is kept until a scan was
	// applied that began well after it, since such a scan must not disprove it.
	recent map[eventKey]gpu.Event
	// trouble are faults of scanning itself: hung, failed.
	trouble []gpu.Cause
	// faults are the node's faults with their Since.
	faults []gpu.Cause
}

// maxRecent bounds the events kept between two scans.
const maxRecent = 4096

type eventKey struct {
	card gpu.UUID
	xid  uint64
}

func newPicture(ignored map[uint64]bool) *picture {
	return &picture{
		ignored: ignored,
		health:  map[gpu.UUID]gpu.Health{},
		recent:  map[eventKey]gpu.Event{},
	}
}

// scanned applies a scan that began at began and is known since now.
func (p *picture) scanned(scan gpu.Snapshot, began, now time.Time) {
	next := make(map[gpu.UUID]gpu.Health, len(scan.GPUs))
	for i := range scan.GPUs {
		card := &scan.GPUs[i]
		next[card.UUID] = health.Judge(health.Input{
			Previous:    p.health[card.UUID],
			ScanBegan:   began,
			Seen:        card.Health.Causes,
			Recovery:    card.Health.Recovery,
			Answers:     card.Health.State != gpu.Gone,
			Events:      p.eventsOf(card.UUID),
			Now:         now,
			IgnoredXIDs: p.ignored,
		})
	}
	p.scan, p.health = scan, next
	p.forgetEvents(began)
	p.trouble = nil
	p.keepFaults(now)
}

// forgetEvents drops the events that the scan just applied was late enough to
// disprove, or did disprove.
func (p *picture) forgetEvents(began time.Time) {
	for key, event := range p.recent {
		standing := slices.ContainsFunc(p.health[key.card].Causes, func(cause gpu.Cause) bool {
			xid, ok := health.XIDOf(cause.Code)
			return ok && xid == key.xid
		})
		_, known := p.health[key.card]
		if began.After(event.Time.Add(health.Settle)) || known && !standing {
			delete(p.recent, key)
		}
	}
}

// happened applies an event. An event that names no card concerns every card; one
// that names a card not scanned yet waits for that scan; one that carries no XID
// changes nothing by itself.
func (p *picture) happened(event gpu.Event) {
	p.remember(event.GPU, event)
	for i := range p.scan.GPUs {
		id := p.scan.GPUs[i].UUID
		if event.GPU != "" && event.GPU != id {
			continue
		}
		p.remember(id, event)
		p.health[id] = health.Judge(health.Input{
			Previous:    p.health[id],
			Events:      []gpu.Event{event},
			Now:         event.Time,
			IgnoredXIDs: p.ignored,
		})
	}
}

func (p *picture) remember(card gpu.UUID, event gpu.Event) {
	if card == "" || event.XID == 0 || len(p.recent) >= maxRecent {
		return
	}
	event.GPU = card
	p.recent[eventKey{card, event.XID}] = event
}

// hung records that a scan has not returned: on the card that it is reading, or on
// the node when that is not known. It stands until a scan returns.
func (p *picture) hung(card gpu.UUID, call string, deadline time.Duration, now time.Time) {
	if call == "" {
		call = "a hardware call"
	}
	cause := gpu.Cause{
		Code:    "NVML_TIMEOUT",
		Message: fmt.Sprintf("%s has not returned for more than %v; what is shown is from before", call, deadline),
	}
	if _, known := p.health[card]; !known {
		if card != "" {
			cause.Message = string(card) + ": " + cause.Message
		}
		p.blame(cause, now)
		return
	}
	p.health[card] = health.Judge(health.Input{
		Previous: p.health[card], Seen: []gpu.Cause{cause}, Now: now, IgnoredXIDs: p.ignored,
	})
}

// failed records that a scan came back with an error; the last scan stays in force.
func (p *picture) failed(err error, now time.Time) {
	p.trouble = nil
	p.blame(gpu.Cause{Code: "SCAN_FAILED", Message: err.Error() + "; what is shown is from before"}, now)
}

func (p *picture) blame(cause gpu.Cause, now time.Time) {
	p.trouble = append(p.trouble, cause)
	p.keepFaults(now)
}

// keepFaults gives each fault the Since of its first appearance.
func (p *picture) keepFaults(now time.Time) {
	faults := slices.Concat(p.scan.Faults, p.trouble)
	for i := range faults {
		faults[i].Since = now
		for _, old := range p.faults {
			if old.Code == faults[i].Code && old.Message == faults[i].Message {
				faults[i].Since = old.Since
			}
		}
	}
	slices.SortFunc(faults, health.CompareCauses)
	p.faults = faults
}

func (p *picture) eventsOf(id gpu.UUID) []gpu.Event {
	var events []gpu.Event
	for key, event := range p.recent {
		if key.card == id {
			events = append(events, event)
		}
	}
	slices.SortFunc(events, func(a, b gpu.Event) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.XID, b.XID))
	})
	return events
}

// snapshot is the picture as a value that shares nothing changeable with it.
func (p *picture) snapshot() *gpu.Snapshot {
	out := p.scan
	out.GPUs = slices.Clone(p.scan.GPUs)
	for i := range out.GPUs {
		out.GPUs[i].Health = p.health[out.GPUs[i].UUID]
	}
	out.Faults = slices.Clone(p.faults)
	return &out
}
