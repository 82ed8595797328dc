package migapply

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/core/mig"
	"github.com/berth-gpu/berth/internal/node/ledger"
)

// claimant is a simple twin of the claims on one dynamic GPU, whose mode changes without a reset. The zero value of a placement is the
// whole GPU.
type claimant struct {
	*world
	id   gpu.UUID
	held map[string]mig.Placed
	made int
	// pods are the MIG devices that pods have: the device plugin advertised them before the GPU was dynamic.
	pods map[string]mig.Placed
}

func newClaimant(w *world) *claimant {
	return &claimant{world: w, id: "GPU-1", held: map[string]mig.Placed{}, pods: map[string]mig.Placed{}}
}

func (c *claimant) key(placed mig.Placed) gpu.DeviceKey {
	if placed.Size == 0 {
		return gpu.DeviceKey{GPU: c.id}
	}
	return gpu.Placed(c.id, gpu.Placement{Start: placed.Start, Size: placed.Size})
}

// overlaps reports whether a claim or a pod has a slice of a placement.
func (c *claimant) overlaps(placed mig.Placed) bool {
	for _, other := range slices.Concat(slices.Collect(maps.Values(c.held)), slices.Collect(maps.Values(c.pods))) {
		if other.Size == 0 || placed.Size == 0 || placed.Start < other.Start+other.Size && other.Start < placed.Start+placed.Size {
			return true
		}
	}
	return false
}

// acquire makes a claim, unless the ledger refuses it: another claim or maintenance has a slice of it.
func (c *claimant) acquire(placed mig.Placed) {
	c.made++
	uid := fmt.Sprintf("claim-%d", c.made)
	err := c.book.AcquireClaim(ledger.Claim{UID: uid, Devices: []ledger.ClaimDevice{{Key: c.key(placed), Profile: placed.Profile}}})
	blocked, refused := errors.AsType[*ledger.BlockedError](err)
	switch {
	case err == nil && c.overlaps(placed):
		c.never("two claims have %s: %v; %v", placed, c.held, c.trace)
	case err == nil:
		c.held[uid], c.waiting[uid] = placed, true
	case !refused:
		c.never("acquire %s: %v; %v", placed, err, c.trace)
	case !c.overlaps(placed) && blocked.Holding.Holder.Kind != gpu.HolderMaintenance:
		c.never("acquire %s: %v; %v", placed, err, c.trace)
	}
}

// allocate gives a MIG device to a pod, unless the ledger refuses it. The kubelet may allocate one that it has on its list still.
func (c *claimant) allocate(device gpu.MIGDevice) {
	key, pod := gpu.DeviceKey{GPU: c.id, MIG: device.UUID}, "pod-"+string(device.UUID)
	if c.world.pods[pod] != nil || c.book.Acquire(gpu.Holder{Kind: gpu.HolderPod}, []gpu.DeviceKey{key}) != nil {
		return
	}
	if _, exists := c.look().Device(device.UUID); exists == nil {
		c.never("a pod got %s, which was removed; %v", key, c.trace)
	}
	c.world.pods[pod] = &fakePod{keys: []gpu.DeviceKey{key}}
	c.pods[pod] = mig.Placed{Profile: device.Profile, Start: device.Start, Size: device.Size}
	c.compare()
}

func (c *claimant) release(uid string) {
	if err := c.book.Release(gpu.Holder{Kind: gpu.HolderClaim, ID: uid}, nil); err != nil {
		c.never("release %s: %v", uid, err)
	}
	delete(c.held, uid)
	delete(c.waiting, uid)
}

// update sets what the GPU is to be, as it follows from the claims now.
func (c *claimant) update() {
	wanted := mig.Wanted{Enabled: c.snapshot.GPU(c.id).MIG.Enabled}
	for _, uid := range slices.Sorted(maps.Keys(c.held)) {
		placed := c.held[uid]
		if wanted.Enabled = placed.Size > 0; wanted.Enabled {
			wanted.Placed = append(wanted.Placed, placed)
		}
	}
	for _, placed := range c.pods {
		wanted.Placed = append(wanted.Placed, placed)
	}
	slices.SortFunc(wanted.Placed, func(a, b mig.Placed) int { return a.Start - b.Start })
	c.wants = slices.DeleteFunc(c.wants, func(o Want) bool { return o.UUID == c.id })
	c.wants = append(c.wants, Want{UUID: c.id, Wanted: wanted, Source: "claims", Claims: true})
}

// round reconciles, and gives the devices to the claims that waited for them before it began.
func (c *claimant) round() []Status {
	c.t.Helper()
	c.update()
	waiting, lives := maps.Clone(c.waiting), c.lives
	statuses := c.reconcile()
	if lives != c.lives {
		return statuses
	}
	for _, status := range statuses {
		if status.UUID != c.id {
			continue
		}
		for _, uid := range slices.Sorted(maps.Keys(waiting)) {
			if placed, held := c.held[uid]; held {
				c.ready(uid, placed, &status)
			}
		}
	}
	return statuses
}

// ready gives a claim its device when the status shows it.
func (c *claimant) ready(uid string, placed mig.Placed, status *Status) {
	c.t.Helper()
	id := status.Has(c.snapshot.GPU(c.id), c.key(placed), placed.Profile)
	if id == "" {
		return
	}
	if whole, device := c.look().Device(id); whole == nil || placed.Size > 0 && device == nil {
		c.t.Fatalf("%q of claim %s does not exist:\n%s%v", placed, uid, c.picture(), c.trace)
	}
	if placed.Size > 0 {
		if err := c.book.Resolve(gpu.Holder{Kind: gpu.HolderClaim, ID: uid}, c.key(placed), id); err != nil {
			c.t.Fatalf("resolve %s: %v", placed, err)
		}
	}
	delete(c.waiting, uid)
}

// served fails unless each claim that has its device still has it.
func (c *claimant) served() {
	c.t.Helper()
	device := c.gpuOf(c.id)
	for uid, placed := range c.held {
		if c.waiting[uid] {
			continue
		}
		there := slices.ContainsFunc(device.instances, func(in fakeInstance) bool {
			return in.device && in.Profile == placed.Profile && in.Start == placed.Start
		})
		if placed.Size == 0 && (device.enabled || len(device.instances) > 0) || placed.Size > 0 && !there {
			c.t.Fatalf("claim %s lost %q:\n%s%v", uid, placed, c.picture(), c.trace)
		}
	}
}

// finish reconciles until nothing changes, and fails unless every claim has its device and nothing else exists.
func (c *claimant) finish() {
	c.t.Helper()
	for quiet := 0; quiet < 3; quiet++ {
		points := c.points
		if c.round(); c.points != points {
			quiet = 0
		}
		c.clock.Step(lastRetry)
	}
	if len(c.waiting) > 0 {
		c.t.Fatalf("claims %v wait for ever: %v\n%s%v", c.waiting, c.partition.Statuses(), c.picture(), c.trace)
	}
	c.served()
	if has := len(c.gpuOf(c.id).instances); has != len(c.wants[len(c.wants)-1].Wanted.Placed) {
		c.t.Fatalf("%d MIG devices:\n%s%v", has, c.picture(), c.trace)
	}
	c.clean()
}

// TestClaimsConverge makes and ends claims on a GPU at random, also while the GPU changes for others, changes the layout of another
// GPU, lets the driver fail, and kills the agent. Before the first claim, pods get MIG devices that the GPU had. A claim that has its
// device keeps it; when the events end, each claim has its device at exactly its placement, and nothing else exists.
func TestClaimsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "claims")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := newWorld(t, dir, 2)
		defer func() { w.endAgent() }()
		w.be("GPU-1", rapid.SampledFrom([]string{"off", "on", "7x1g.10gb", "2x3g.40gb"}).Draw(t, "before"))
		c := newClaimant(w)
		geometry := geometry()
		every := append(mig.Placements(&geometry), mig.Placed{})
		change := func(what string) {
			switch what {
			case "acquire":
				c.acquire(rapid.SampledFrom(every).Draw(t, "placement"))
			case "allocate":
				devices := w.snapshot.GPU(c.id).MIG.Devices
				if c.made == 0 && len(devices) > 0 {
					c.allocate(rapid.SampledFrom(devices).Draw(t, "device"))
				}
			case "release":
				if uids := slices.Sorted(maps.Keys(c.held)); len(uids) > 0 {
					c.release(rapid.SampledFrom(uids).Draw(t, "claim"))
				}
			}
		}
		w.meanwhile = func() {
			if !w.dead && rapid.IntRange(0, 5).Draw(t, "meanwhile") == 0 {
				change(rapid.SampledFrom([]string{"acquire", "release", "release", "allocate", "allocate"}).Draw(t, "change"))
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			switch what := rapid.SampledFrom([]string{"acquire", "acquire", "acquire", "release", "allocate", "round", "round", "round",
				"layout", "fail", "kill", "slow", "answer", "wait"}).Draw(t, "event"); what {
			case "round":
				c.round()
			case "layout":
				w.want("GPU-0", layout(t), "layout x")
			case "fail":
				w.breakNext(rapid.SliceOfN(rapid.SampledFrom([]string{"create", "destroy", "mode", "touch", "scan"}), 1, 3).Draw(t, "calls"), false)
			case "kill":
				w.killAt = w.points + rapid.IntRange(1, 25).Draw(t, "points")
			case "slow":
				w.slow = append(w.slow, rapid.SampledFrom([]string{"create", "destroy", "mode"}).Draw(t, "call"))
			case "answer":
				w.answer()
			case "wait":
				w.clock.Step(lastRetry)
			default:
				change(what)
			}
			c.served()
			w.intact()
		}
		w.breaks, w.killAt, w.meanwhile = nil, 0, nil
		w.answer()
		w.scan()
		c.finish()
		for uid := range maps.Clone(c.held) {
			c.release(uid)
		}
		for pod := range maps.Clone(c.pods) {
			delete(c.pods, pod)
			w.end(pod)
		}
		c.finish()
	})
}

// TestClaimsKilledAtEachStep kills the agent at each step of a change for claims: the first devices on a GPU with MIG off, devices
// beside one that is used, in place of one that is not, and the whole GPU.
func TestClaimsKilledAtEachStep(t *testing.T) {
	at := func(profile string, start, size int) mig.Placed {
		return mig.Placed{Profile: profile, Start: start, Size: size}
	}
	for name, story := range map[string]struct {
		before string
		used   []mig.Placed // by claims that have their devices
		claims []mig.Placed
	}{
		"MIG on":        {"off", nil, []mig.Placed{at("1g.10gb", 6, 1), at("3g.40gb", 0, 4)}},
		"beside":        {"off", []mig.Placed{at("4g.40gb", 0, 4)}, []mig.Placed{at("2g.20gb", 4, 2)}},
		"in place of":   {"7x1g.10gb", nil, []mig.Placed{at("7g.80gb", 0, 8)}},
		"the whole GPU": {"2x3g.40gb", nil, []mig.Placed{{}}},
		"nothing":       {"3x2g.20gb", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func(t *testing.T) *claimant {
				w := newWorld(t, t.TempDir(), 2)
				w.be("GPU-1", story.before)
				c := newClaimant(w)
				for _, placed := range story.used {
					c.acquire(placed)
				}
				if len(story.used) > 0 {
					c.finish()
				}
				for _, placed := range story.claims {
					c.acquire(placed)
				}
				return c
			}
			c := begin(t)
			before := c.points
			c.finish()
			steps := c.points - before
			if steps < 5 || len(c.held) != len(story.used)+len(story.claims) {
				t.Fatalf("%d steps, claims %v: %v", steps, c.held, c.trace)
			}
			for i := 1; i <= steps; i++ {
				for _, then := range []string{"wanted", "released"} {
					c := begin(t)
					c.killAt = c.points + i
					c.round()
					if c.lives < 2 {
						t.Fatalf("did not die at step %d: %v", i, c.trace)
					}
					if then == "released" {
						for uid := range maps.Clone(c.held) {
							c.release(uid)
						}
					}
					c.finish()
				}
			}
		})
	}
}
