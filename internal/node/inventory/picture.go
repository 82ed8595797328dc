package inventory

import (
	"cmp"
	"errors"
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
	// scan is the last scan that returned, with health as the source reported it.
	scan gpu.Snapshot
	// records hold the state of each GPU in scan, restored the state in an earlier process of GPUs that no scan has
	// found yet.
	records  map[gpu.UUID]health.Record
	restored map[gpu.UUID]health.Record
	// recent is the last event of each GPU and code. An event is kept until a scan was
	// applied that began well after it, since such a scan must not disprove it.
	recent map[eventKey]gpu.Event
	// failure is the error of the last scan; nil when it had a result.
	failure *gpu.Cause
	// timeout is set from when a scan hangs until one returns in time.
	timeout *timeout
	// faults are the node's faults with their Since.
	faults []gpu.Cause
}

// maxRecent bounds the events kept between two scans.
const maxRecent = 4096

// timeout is the call that a hung scan waits for; id is empty for a call that is about no GPU.
type timeout struct {
	id    gpu.UUID
	cause gpu.Cause
}

type eventKey struct {
	id   gpu.UUID
	code gpu.Code
	gi   int
	ci   int
}

func newPicture(rules health.Rules, restored map[gpu.UUID]health.Record) *picture {
	return &picture{
		rules:    rules,
		records:  map[gpu.UUID]health.Record{},
		restored: maps.Clone(restored),
		recent:   map[eventKey]gpu.Event{},
	}
}

// record has the health state of a GPU.
func (p *picture) record(id gpu.UUID) health.Record {
	if record, ok := p.records[id]; ok {
		return record
	}
	return p.restored[id]
}

// all returns a copy of the records.
func (p *picture) all() map[gpu.UUID]health.Record { return maps.Clone(p.records) }

// proves reports whether proof of a repair is being gathered, which the snapshot does not show.
func (p *picture) proves() bool {
	for _, record := range p.records {
		if !record.Idle() {
			return true
		}
	}
	return false
}

// scanned applies a scan that began at began and returned at now. After a late scan, the call that it waited for stays
// a fault until a scan returns in time. It returns the GPUs that were reset, or whose driver was loaded again, since
// the scan before.
func (p *picture) scanned(scan gpu.Snapshot, began, now time.Time, late bool) (renewed []gpu.UUID) {
	p.failure = nil
	if !late {
		p.timeout = nil
	}
	next := make(map[gpu.UUID]health.Record, len(scan.GPUs))
	for i := range scan.GPUs {
		g := &scan.GPUs[i]
		proof := began
		if g.Health.Partial {
			proof = time.Time{} // it adds causes, and removes none
		}
		input := health.Input{
			Previous:  p.record(g.UUID),
			ScanBegan: proof,
			Seen:      p.seen(g),
			Instances: instances(g),
			Recovery:  g.Health.Recovery,
			Contains:  health.Contains(g.ComputeCapability),
			Life:      g.Life,
			Answers:   g.Health.State != gpu.Gone,
			Events:    p.eventsOf(g.UUID),
			Now:       now,
			Rules:     p.rules,
		}
		if input.Renewed() {
			renewed = append(renewed, g.UUID)
		}
		next[g.UUID] = health.Update(input)
		delete(p.restored, g.UUID)
	}
	before := p.records
	p.scan, p.records = scan, next
	p.forgetEvents(before, began)
	p.keepFaults(now)
	return renewed
}

func instances(g *gpu.GPU) []health.Instance {
	var list []health.Instance
	for i := range g.MIG.Devices {
		list = append(list, health.Instance{GI: g.MIG.Devices[i].GI, CI: g.MIG.Devices[i].CI})
	}
	return list
}

// seen returns the level causes of a scanned GPU, including a timeout.
func (p *picture) seen(g *gpu.GPU) []gpu.Cause {
	if p.timeout != nil && p.timeout.id == g.UUID {
		return append(slices.Clone(g.Health.Causes), p.timeout.cause)
	}
	return g.Health.Causes
}

// forgetEvents drops the events that the applied scan was late enough to disprove, those that it did disprove, and
// those of GPUs that it found removed. before are the GPUs of the scan before it.
func (p *picture) forgetEvents(before map[gpu.UUID]health.Record, began time.Time) {
	for key, event := range p.recent {
		record, here := p.records[key.id]
		_, wasHere := before[key.id]
		standing := record.Has(key.code)
		switch {
		case began.After(event.Time.Add(health.Settle)), here && !standing, wasHere && !here && began.After(event.Time):
			delete(p.recent, key)
		}
	}
}

// happened applies an event. An event without a GPU concerns every GPU; an event of a GPU that was not scanned yet
// waits for that scan; an event without an XID changes nothing by itself.
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

func (p *picture) remember(id gpu.UUID, event gpu.Event) {
	if id == "" || event.Code.IsZero() || len(p.recent) >= maxRecent {
		return
	}
	event.GPU = id
	p.recent[eventKey{id, event.Code, event.GI, event.CI}] = event
}

// hung records that a scan has not returned: on the GPU that it is reading, or on
// the node when that is not known. The problem code is the vendor's.
func (p *picture) hung(code string, id gpu.UUID, call string, deadline time.Duration, now time.Time) {
	if call == "" {
		call = "a hardware call"
	}
	cause := gpu.Cause{
		Code:    code,
		Message: fmt.Sprintf("%s has not returned for more than %v; what is shown is from before", call, deadline),
	}
	if record, known := p.records[id]; known {
		p.timeout = &timeout{id, cause}
		p.records[id] = health.Update(health.Input{
			Previous: record, Seen: []gpu.Cause{cause}, Now: now, Rules: p.rules,
		})
		return
	}
	if id != "" {
		cause.Message = string(id) + ": " + cause.Message
	}
	p.timeout = &timeout{"", cause}
	p.keepFaults(now)
}

// failed records that a scan returned an error; the last scan stays in force.
func (p *picture) failed(err error, now time.Time) {
	code := "SCAN_FAILED"
	if _, ok := errors.AsType[*refusal](err); ok {
		code = codeRefused
	}
	p.failure = &gpu.Cause{Code: code, Message: err.Error() + "; what is shown is from before"}
	p.keepFaults(now)
}

// withdrawn records that the vendor is no longer called: its GPUs are Gone, and the state of its driver is unknown.
func (p *picture) withdrawn(why string, now time.Time) {
	cause := gpu.Cause{Code: "VENDOR_WITHDRAWN", Message: why + "; its GPUs are not used until the agent is restarted"}
	scan := p.scan
	scan.GPUs, scan.Vendors, scan.Faults = slices.Clone(p.scan.GPUs), slices.Clone(p.scan.Vendors), []gpu.Cause{cause}
	for i := range scan.GPUs {
		scan.GPUs[i].Driver, scan.GPUs[i].Health = gpu.Driver{}, gpu.Health{State: gpu.Gone, Causes: []gpu.Cause{cause}}
	}
	for i := range scan.Vendors {
		scan.Vendors[i].Driver = gpu.Driver{}
	}
	p.scanned(scan, now, now, false)
}

// keepFaults gives each fault the Since of its first appearance.
func (p *picture) keepFaults(now time.Time) {
	faults := slices.Clone(p.scan.Faults)
	if p.failure != nil {
		faults = append(faults, *p.failure)
	}
	if p.timeout != nil && p.timeout.id == "" {
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
		if key.id == id {
			events = append(events, event)
		}
	}
	slices.SortFunc(events, func(a, b gpu.Event) int {
		return cmp.Or(a.Time.Compare(b.Time), a.Code.Compare(b.Code),
			cmp.Compare(a.GI, b.GI), cmp.Compare(a.CI, b.CI))
	})
	return events
}

// snapshot returns the picture as a value that shares no mutable data with it.
func (p *picture) snapshot() *gpu.Snapshot {
	out := p.scan
	out.GPUs = slices.Clone(p.scan.GPUs)
	for i := range out.GPUs {
		g := &out.GPUs[i]
		record := p.records[g.UUID]
		g.Health, g.Life = record.Whole(p.rules), gpu.Life{}
		g.MIG.Devices = slices.Clone(g.MIG.Devices)
		for k := range g.MIG.Devices {
			device := &g.MIG.Devices[k]
			device.Health = record.MIG(p.rules, device.GI, device.CI)
		}
	}
	out.Faults = slices.Clone(p.faults)
	return &out
}
