package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/health"
)

// picture joins scans and events into snapshots. It does no I/O and reads no clock, so
// that all of it can be tested without goroutines.
type picture struct {
	rules health.Rules
	// scan is the last scan that returned, with health as the adapter saw it.
	scan gpu.Snapshot
	// records hold what is known of each card in scan, restored what an earlier process knew of cards that
	// no scan has found yet.
	records, restored map[gpu.UUID]health.Record
	// recent is the last event of each card and code. An event is kept until a scan was
	// applied that began well after it, since such a scan must not disprove it.
	recent map[eventKey]gpu.Event
	// failure is why the last scan came back without a result; nil when it had one.
	failure *gpu.Cause
	// timeout is set from when a scan hangs until one returns in time.
	timeout *timeout
	// faults are the node's faults with their Since.
	faults []gpu.Cause
}

// maxRecent bounds the events kept between two scans.
const maxRecent = 4096

// timeout is what a hung scan was waiting for; card is empty for the node.
type timeout struct {
	card  gpu.UUID
	cause gpu.Cause
}

type eventKey struct {
	card   gpu.UUID
	code   gpu.Code
	gi, ci int
}

func newPicture(rules health.Rules, restored map[gpu.UUID]health.Record) *picture {
	return &picture{
		rules:    rules,
		records:  map[gpu.UUID]health.Record{},
		restored: maps.Clone(restored),
		recent:   map[eventKey]gpu.Event{},
	}
}

// record is what is known of a card.
func (p *picture) record(card gpu.UUID) health.Record {
	if record, ok := p.records[card]; ok {
		return record
	}
	return p.restored[card]
}

// all is what to keep over a restart.
func (p *picture) all() map[gpu.UUID]health.Record {
	all := maps.Clone(p.records)
	maps.Copy(all, p.restored)
	return all
}

// proves tells whether proof of a repair is being gathered, which the snapshot does not show.
func (p *picture) proves() bool {
	for _, record := range p.records {
		if !record.Idle() {
			return true
		}
	}
	return false
}

// scanned applies a scan that began at began and is known since now. What a late one
// was waiting for stays under suspicion until a scan returns in time. It returns the GPUs that are in another life than
// in the scan before.
func (p *picture) scanned(scan gpu.Snapshot, began, now time.Time, late bool) (renewed []gpu.UUID) {
	p.failure = nil
	if !late {
		p.timeout = nil
	}
	next := make(map[gpu.UUID]health.Record, len(scan.GPUs))
	for i := range scan.GPUs {
		card := &scan.GPUs[i]
		proof := began
		if card.Health.Partial {
			proof = time.Time{} // it adds causes, and removes none
		}
		input := health.Input{
			Previous:  p.record(card.UUID),
			ScanBegan: proof,
			Seen:      p.seen(card),
			Instances: instances(card),
			Recovery:  card.Health.Recovery,
			Contains:  health.Contains(card.ComputeCapability),
			Life:      card.Life,
			Answers:   card.Health.State != gpu.Gone,
			Events:    p.eventsOf(card.UUID),
			Now:       now,
			Rules:     p.rules,
		}
		if input.Renewed() {
			renewed = append(renewed, card.UUID)
		}
		next[card.UUID] = health.Update(input)
		delete(p.restored, card.UUID)
	}
	before := p.records
	p.scan, p.records = scan, next
	p.forgetEvents(before, began)
	p.keepFaults(now)
	return renewed
}

func instances(card *gpu.GPU) []health.Instance {
	var list []health.Instance
	for i := range card.MIG.Devices {
		list = append(list, health.Instance{GI: card.MIG.Devices[i].GI, CI: card.MIG.Devices[i].CI})
	}
	return list
}

// seen are the level causes of a scanned card, a timeout included.
func (p *picture) seen(card *gpu.GPU) []gpu.Cause {
	if p.timeout != nil && p.timeout.card == card.UUID {
		return append(slices.Clone(card.Health.Causes), p.timeout.cause)
	}
	return card.Health.Causes
}

// forgetEvents drops the events that the scan just applied was late enough to
// disprove, those that it did disprove, and those of cards that it found removed. before
// are the cards of the scan before it.
func (p *picture) forgetEvents(before map[gpu.UUID]health.Record, began time.Time) {
	for key, event := range p.recent {
		record, here := p.records[key.card]
		_, wasHere := before[key.card]
		standing := record.Has(key.code)
		switch {
		case began.After(event.Time.Add(health.Settle)), here && !standing, wasHere && !here && began.After(event.Time):
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
		p.records[id] = health.Update(health.Input{
			Previous: p.records[id],
			Events:   []gpu.Event{event},
			Now:      event.Time,
			Rules:    p.rules,
		})
	}
}

func (p *picture) remember(card gpu.UUID, event gpu.Event) {
	if card == "" || event.Code.IsZero() || len(p.recent) >= maxRecent {
		return
	}
	event.GPU = card
	p.recent[eventKey{card, event.Code, event.GI, event.CI}] = event
}

// hung records that a scan has not returned: on the card that it is reading, or on
// the node when that is not known.
func (p *picture) hung(card gpu.UUID, call string, deadline time.Duration, now time.Time) {
	if call == "" {
		call = "a hardware call"
	}
	cause := gpu.Cause{
		Code:    "NVML_TIMEOUT",
		Message: fmt.Sprintf("%s has not returned for more than %v; what is shown is from before", call, deadline),
	}
	if record, known := p.records[card]; known {
		p.timeout = &timeout{card, cause}
		p.records[card] = health.Update(health.Input{
			Previous: record, Seen: []gpu.Cause{cause}, Now: now, Rules: p.rules,
		})
		return
	}
	if card != "" {
		cause.Message = string(card) + ": " + cause.Message
	}
	p.timeout = &timeout{"", cause}
	p.keepFaults(now)
}

// failed records that a scan came back with an error; the last scan stays in force.
func (p *picture) failed(err error, now time.Time) {
	p.failure = &gpu.Cause{Code: "SCAN_FAILED", Message: err.Error() + "; what is shown is from before"}
	p.keepFaults(now)
}

// keepFaults gives each fault the Since of its first appearance.
func (p *picture) keepFaults(now time.Time) {
	faults := slices.Clone(p.scan.Faults)
	if p.failure != nil {
		faults = append(faults, *p.failure)
	}
	if p.timeout != nil && p.timeout.card == "" {
		faults = append(faults, p.timeout.cause)
	}
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
		return cmp.Or(a.Time.Compare(b.Time), a.Code.Compare(b.Code),
			cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
	})
	return events
}

// snapshot is the picture as a value that shares nothing changeable with it.
func (p *picture) snapshot() *gpu.Snapshot {
	out := p.scan
	out.GPUs = slices.Clone(p.scan.GPUs)
	for i := range out.GPUs {
		card := &out.GPUs[i]
		record := p.records[card.UUID]
		card.Health, card.Life = record.Whole(p.rules), gpu.Life{}
		card.MIG.Devices = slices.Clone(card.MIG.Devices)
		for k := range card.MIG.Devices {
			device := &card.MIG.Devices[k]
			device.Health = record.MIG(p.rules, device.GI, device.CI)
		}
	}
	out.Faults = slices.Clone(p.faults)
	return &out
}
