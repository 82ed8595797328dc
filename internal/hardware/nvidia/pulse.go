package nvidia

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// throttleAfter is how long the clocks must have been held down in every scan before it is told, and
	// throttleUntil how long they must have been free before it is told no more: a moment says nothing.
	throttleAfter = 10 * time.Second
	throttleUntil = time.Minute
	// cooler is by how many degrees a card must be below a threshold to have left it.
	cooler = 5
	// linkErrorLimit is how many replays and recoveries of a card's NVLinks within linkErrorWindow are too many.
	linkErrorLimit  = 100
	linkErrorWindow = 10 * time.Minute
)

// pulse is what the checks remember of a card from one scan to the next.
type pulse struct {
	// now is the time of the scan.
	now time.Time
	// limits are the temperature thresholds in degrees Celsius by their cause, 0 where there is none; nil before
	// they were asked for.
	limits map[string]uint32
	// hot are the thresholds that the card has passed.
	hot map[string]bool
	// noPages is true for a card that retires no pages.
	noPages bool
	// throttled are the reasons that hold the clocks down, by their cause.
	throttled map[string]*lasting
	// errors are the totals of the NVLinks' errors where they changed, oldest first.
	errors []total
	// wereUp are the NVLinks that were active in some scan.
	wereUp map[int]bool
}

// lasting is a state that counts once it has lasted.
type lasting struct {
	since, last time.Time
	counts      bool
}

// total is a counter at a time.
type total struct {
	at    time.Time
	count uint64
}

// pulse is the memory of a card, for the scan that runs.
func (a *work) pulse(id gpu.UUID) *pulse {
	p := a.pulses[id]
	if p == nil {
		p = &pulse{hot: map[string]bool{}, throttled: map[string]*lasting{}, wereUp: map[int]bool{}}
		a.pulses[id] = p
	}
	p.now = a.now()
	return p
}

// checkRetiredPages: cards of before Ampere retire pages instead of remapping rows.
func checkRetiredPages(q *question, d nvml.Device, p *pulse) []gpu.Cause {
	if p.noPages {
		return nil
	}
	pending, ok := ask(q, "nvmlDeviceGetRetiredPagesPendingStatus", func() (nvml.EnableState, nvml.Return) {
		pending, ret := d.GetRetiredPagesPendingStatus()
		p.noPages = ret == nvml.ERROR_NOT_SUPPORTED
		return pending, ret
	})
	if !ok || pending != nvml.FEATURE_ENABLED {
		return nil
	}
	return []gpu.Cause{unstamped("RETIRED_PAGES_PENDING",
		"memory pages wait to be retired (nvmlDeviceGetRetiredPagesPendingStatus); reset the GPU")}
}

// temperatureLimit is a threshold and its cause.
type temperatureLimit struct {
	code, word string
	kind       nvml.TemperatureThresholds
}

// temperatureLimits are ordered from the lower to the higher.
func temperatureLimits() []temperatureLimit {
	return []temperatureLimit{
		{"TEMPERATURE_SLOWDOWN", "slowdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN},
		{"TEMPERATURE_SHUTDOWN", "shutdown", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN},
	}
}

// checkTemperature compares with the card's own thresholds.
func checkTemperature(q *question, d nvml.Device, p *pulse) []gpu.Cause {
	degrees, ok := ask(q, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
		return d.GetTemperature(nvml.TEMPERATURE_GPU)
	})
	if !ok {
		return nil
	}
	if !p.readLimits(q, d) {
		return nil
	}
	code, word := "", ""
	for _, limit := range temperatureLimits() {
		threshold := p.limits[limit.code]
		leaves := threshold
		if p.hot[limit.code] {
			leaves = threshold - min(cooler, threshold)
		}
		p.hot[limit.code] = threshold > 0 && degrees >= leaves
		if p.hot[limit.code] {
			code, word = limit.code, limit.word
		}
	}
	if code == "" {
		return nil
	}
	return []gpu.Cause{unstamped(code, fmt.Sprintf("the GPU is at or above its %s temperature of %d degrees Celsius (nvmlDeviceGetTemperature)", word, p.limits[code]))}
}

// readLimits asks for the thresholds, once; false when an answer is missing.
func (p *pulse) readLimits(q *question, d nvml.Device) bool {
	if p.limits != nil {
		return true
	}
	limits, missing := section(q, func() map[string]uint32 {
		limits := map[string]uint32{}
		for _, limit := range temperatureLimits() {
			limits[limit.code], _ = ask(q, "nvmlDeviceGetTemperatureThreshold", func() (uint32, nvml.Return) {
				return d.GetTemperatureThreshold(limit.kind)
			})
		}
		return limits
	})
	if missing != nil {
		q.missing = missing
	}
	if missing != nil || q.lost != nil || q.broken != nil {
		return false
	}
	p.limits = limits
	return true
}

// throttleReason is a bit of the clocks' reasons and its cause.
type throttleReason struct {
	bit        uint64
	code, text string
}

// throttleReasons are ordered from the special to the general: the hardware's slowdown is told only where its kind is not known.
func throttleReasons() []throttleReason {
	return []throttleReason{
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "THROTTLE_POWER_BRAKE", "the power supply asks the GPU to slow down (power brake)"},
		{nvml.ClocksThrottleReasonHwThermalSlowdown, "THROTTLE_THERMAL", "the hardware holds the clocks down because of heat"},
		{nvml.ClocksThrottleReasonHwSlowdown, "THROTTLE_HW_SLOWDOWN", "the hardware holds the clocks down"},
	}
}

// checkThrottle tells what has held the clocks down for a while.
func checkThrottle(q *question, d nvml.Device, p *pulse) []gpu.Cause {
	reasons, ok := ask(q, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons)
	if q.missing != nil {
		return nil // nothing is known of this moment
	}
	var causes []gpu.Cause
	special := false
	for _, reason := range throttleReasons() {
		here := ok && reasons&reason.bit != 0
		if reason.bit == nvml.ClocksThrottleReasonHwSlowdown && special {
			here = false
		}
		special = special || here
		if p.lasts(reason.code, here) {
			causes = append(causes, unstamped(reason.code, reason.text+" (nvmlDeviceGetCurrentClocksThrottleReasons)"))
		}
	}
	return causes
}

// lasts takes in whether a state is there, and tells whether it counts.
func (p *pulse) lasts(code string, here bool) bool {
	state := p.throttled[code]
	switch {
	case here && state == nil:
		state = &lasting{since: p.now}
		p.throttled[code] = state
		fallthrough
	case here:
		state.last = p.now
		state.counts = state.counts || p.now.Sub(state.since) >= throttleAfter
	case state == nil:
		return false
	case !state.counts || p.now.Sub(state.last) >= throttleUntil:
		delete(p.throttled, code)
		return false
	}
	return state.counts
}

// linkErrors tells of many errors in a short time. The counters are NVML's fields of all links together.
func (p *pulse) linkErrors(read map[uint32]uint64) []gpu.Cause {
	replays, ok1 := read[nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL]
	recoveries, ok2 := read[nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL]
	if !ok1 && !ok2 {
		return nil
	}
	count := replays + recoveries
	if n := len(p.errors); n == 0 || count < p.errors[n-1].count {
		p.errors = []total{{p.now, count}} // the first look, or the counters were reset
	} else if count > p.errors[n-1].count {
		p.errors = append(p.errors, total{p.now, count})
	}
	for len(p.errors) > 1 && p.now.Sub(p.errors[1].at) >= linkErrorWindow {
		p.errors = p.errors[1:]
	}
	first := p.errors[0].count
	if count-first < linkErrorLimit || p.now.Sub(p.errors[len(p.errors)-1].at) >= linkErrorWindow {
		return nil
	}
	return []gpu.Cause{unstamped("NVLINK_ERRORS", fmt.Sprintf(
		"the GPU's NVLinks replayed or recovered more than %d times within %v (nvmlDeviceGetFieldValues, NVLINK_REPLAY_ERROR_COUNT_TOTAL and NVLINK_RECOVERY_ERROR_COUNT_TOTAL)",
		linkErrorLimit, linkErrorWindow))}
}

// linksDown tells of NVLinks that were active and are not any more (nvmlDeviceGetNvLinkState, which the links' count asks).
func (p *pulse) linksDown(links linkCounts) []gpu.Cause {
	var down []string
	for _, number := range links.up {
		p.wereUp[number] = true
	}
	for number := range nvml.NVLINK_MAX_LINKS {
		if p.wereUp[number] && !slices.Contains(links.up, number) {
			down = append(down, strconv.Itoa(number))
		}
	}
	if len(down) == 0 {
		return nil
	}
	return []gpu.Cause{unstamped("NVLINK_DOWN", fmt.Sprintf(
		"NVLinks that were up are down: %s (nvmlDeviceGetNvLinkState)", strings.Join(down, ", ")))}
}

// compareLinks finds cards that have fewer NVLinks into the NVSwitches than others of their model, also where no scan
// saw them up.
func compareLinks(cards []*card) {
	most := map[string]int{}
	for _, c := range cards {
		most[c.gpu.Product] = max(most[c.gpu.Product], c.links.fabric)
	}
	for _, c := range cards {
		missing := c.device != nil && c.links.exist && c.links.fabric < most[c.gpu.Product] && len(c.links.direct) == 0
		told := slices.ContainsFunc(c.gpu.Health.Causes, func(cause gpu.Cause) bool { return cause.Code == "NVLINK_DOWN" })
		if missing && !told {
			c.gpu.Health.Causes = append(c.gpu.Health.Causes, unstamped("NVLINK_DOWN", fmt.Sprintf(
				"%d of its NVLinks into the NVSwitches are up, other GPUs of its model have %d (nvmlDeviceGetNvLinkState)",
				c.links.fabric, most[c.gpu.Product])))
		}
	}
}

// checkFabric tells of a registration with the NVLink fabric that failed or is not finished (nvmlDeviceGetGpuFabricInfo,
// which the clique asks). One that has not started counts only for a card with links into NVSwitches.
func checkFabric(info nvml.GpuFabricInfo, links linkCounts) []gpu.Cause {
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) != nvml.SUCCESS:
		return []gpu.Cause{unstamped("FABRIC_ERROR", fmt.Sprintf(
			"the GPU could not join its NVLink fabric: nvmlDeviceGetGpuFabricInfo says %s", say(nvml.Return(info.Status))))}
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS,
		info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED && links.fabric > 0:
		return []gpu.Cause{unstamped("FABRIC_NOT_READY",
			"the GPU has not joined its NVLink fabric yet (nvmlDeviceGetGpuFabricInfo), and CUDA does not start before it has")}
	}
	return nil
}
