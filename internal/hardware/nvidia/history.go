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
	// throttleAfter is how long every scan must find the clocks throttled before it is reported, and throttleUntil how long
	// they must have been free before it is cleared.
	throttleAfter = 10 * time.Second
	throttleUntil = time.Minute
	// hysteresis is by how many degrees the temperature must fall below a threshold that was exceeded.
	hysteresis = 5
	// linkErrorLimit is the number of replays and recoveries of a GPU's NVLinks within linkErrorWindow that is reported.
	linkErrorLimit  = 100
	linkErrorWindow = 10 * time.Minute
)

// history is what the checks keep of a GPU from one scan to the next.
type history struct {
	// now is the time of the scan.
	now time.Time
	// limits are the temperature thresholds in degrees Celsius by their cause, 0 where there is none; nil before they were
	// read.
	limits map[string]uint32
	// exceeded are the thresholds that the GPU has reached.
	exceeded map[string]bool
	// noPages is true for a GPU that retires no pages.
	noPages bool
	// throttled are the reasons for which the clocks are throttled, by their cause.
	throttled map[string]*sustained
	// errors are the totals of the NVLinks' errors where they changed, oldest first.
	errors []counterReading
	// seenUp are the NVLinks that were active in at least one scan.
	seenUp map[int]bool
}

// sustained is a state that counts once it has lasted for some time.
type sustained struct {
	since  time.Time
	last   time.Time
	counts bool
}

// counterReading is the value of a counter at a time.
type counterReading struct {
	at    time.Time
	count uint64
}

// history returns the history of a GPU, for the present scan.
func (a *work) history(id gpu.UUID) *history {
	h := a.histories[id]
	if h == nil {
		h = &history{exceeded: map[string]bool{}, throttled: map[string]*sustained{}, seenUp: map[int]bool{}}
		a.histories[id] = h
	}
	h.now = a.now()
	return h
}

// checkRetiredPages reports pages that wait to be retired: GPUs before Ampere retire pages instead of remapping rows.
func checkRetiredPages(q *caller, d nvml.Device, h *history) []gpu.Cause {
	if h.noPages {
		return nil
	}
	pending, ok := invoke(q, "nvmlDeviceGetRetiredPagesPendingStatus", func() (nvml.EnableState, nvml.Return) {
		pending, ret := d.GetRetiredPagesPendingStatus()
		h.noPages = ret == nvml.ERROR_NOT_SUPPORTED
		return pending, ret
	})
	if !ok || pending != nvml.FEATURE_ENABLED {
		return nil
	}
	return []gpu.Cause{newCause("RETIRED_PAGES_PENDING",
		"memory pages wait to be retired (nvmlDeviceGetRetiredPagesPendingStatus); reset the GPU")}
}

// temperatureLimit is a threshold and its cause.
type temperatureLimit struct {
	code string
	word string
	kind nvml.TemperatureThresholds
}

// temperatureLimits are ordered from the lower to the higher.
func temperatureLimits() []temperatureLimit {
	return []temperatureLimit{
		{"TEMPERATURE_SLOWDOWN", "slowdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN},
		{"TEMPERATURE_SHUTDOWN", "shutdown", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN},
	}
}

// checkTemperature compares the temperature with the GPU's own thresholds.
func checkTemperature(q *caller, d nvml.Device, h *history) []gpu.Cause {
	degrees, ok := invoke(q, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) {
		return d.GetTemperature(nvml.TEMPERATURE_GPU)
	})
	if !ok {
		return nil
	}
	if !h.readLimits(q, d) {
		return nil
	}
	code, word := "", ""
	for _, limit := range temperatureLimits() {
		threshold := h.limits[limit.code]
		leaves := threshold
		if h.exceeded[limit.code] {
			leaves = threshold - min(hysteresis, threshold)
		}
		h.exceeded[limit.code] = threshold > 0 && degrees >= leaves
		if h.exceeded[limit.code] {
			code, word = limit.code, limit.word
		}
	}
	if code == "" {
		return nil
	}
	return []gpu.Cause{newCause(code, fmt.Sprintf("the GPU is at or above its %s temperature of %d degrees Celsius (nvmlDeviceGetTemperature)", word, h.limits[code]))}
}

// readLimits reads the thresholds once; false when a call failed.
func (h *history) readLimits(q *caller, d nvml.Device) bool {
	if h.limits != nil {
		return true
	}
	limits, missing := group(q, func() map[string]uint32 {
		limits := map[string]uint32{}
		for _, limit := range temperatureLimits() {
			limits[limit.code], _ = invoke(q, "nvmlDeviceGetTemperatureThreshold", func() (uint32, nvml.Return) {
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
	h.limits = limits
	return true
}

// throttleReason is a bit of the clocks' reasons and its cause.
type throttleReason struct {
	bit  uint64
	code string
	text string
}

// throttleReasons are ordered from the specific to the general: the hardware's slowdown is reported only where its kind is not
// known.
func throttleReasons() []throttleReason {
	return []throttleReason{
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "THROTTLE_POWER_BRAKE", "the power supply asks the GPU to slow down (power brake)"},
		{nvml.ClocksThrottleReasonHwThermalSlowdown, "THROTTLE_THERMAL", "the hardware throttles the clocks because of heat"},
		{nvml.ClocksThrottleReasonHwSlowdown, "THROTTLE_HW_SLOWDOWN", "the hardware throttles the clocks"},
	}
}

// checkThrottle reports the reasons for which the clocks have been throttled for some time.
func checkThrottle(q *caller, d nvml.Device, h *history) []gpu.Cause {
	reasons, ok := invoke(q, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons)
	if q.missing != nil {
		return nil // the present state is unknown
	}
	var causes []gpu.Cause
	special := false
	for _, reason := range throttleReasons() {
		here := ok && reasons&reason.bit != 0
		if reason.bit == nvml.ClocksThrottleReasonHwSlowdown && special {
			here = false
		}
		special = special || here
		if h.updateThrottle(reason.code, here) {
			causes = append(causes, newCause(reason.code, reason.text+" (nvmlDeviceGetCurrentClocksThrottleReasons)"))
		}
	}
	return causes
}

// updateThrottle records whether a scan found a reason, and reports whether the reason counts.
func (h *history) updateThrottle(code string, here bool) bool {
	state := h.throttled[code]
	switch {
	case here && state == nil:
		state = &sustained{since: h.now}
		h.throttled[code] = state
		fallthrough
	case here:
		state.last = h.now
		state.counts = state.counts || h.now.Sub(state.since) >= throttleAfter
	case state == nil:
		return false
	case !state.counts || h.now.Sub(state.last) >= throttleUntil:
		delete(h.throttled, code)
		return false
	}
	return state.counts
}

// linkErrors reports many errors in a short time. The counters are NVML's fields for all links together.
func (h *history) linkErrors(read map[uint32]uint64) []gpu.Cause {
	replays, ok1 := read[nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL]
	recoveries, ok2 := read[nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL]
	if !ok1 && !ok2 {
		return nil
	}
	count := replays + recoveries
	if n := len(h.errors); n == 0 || count < h.errors[n-1].count {
		h.errors = []counterReading{{h.now, count}} // the first reading, or the counters were reset
	} else if count > h.errors[n-1].count {
		h.errors = append(h.errors, counterReading{h.now, count})
	}
	for len(h.errors) > 1 && h.now.Sub(h.errors[1].at) >= linkErrorWindow {
		h.errors = h.errors[1:]
	}
	first := h.errors[0].count
	if count-first < linkErrorLimit || h.now.Sub(h.errors[len(h.errors)-1].at) >= linkErrorWindow {
		return nil
	}
	return []gpu.Cause{newCause("NVLINK_ERRORS", fmt.Sprintf(
		"the GPU's NVLinks replayed or recovered more than %d times within %v (nvmlDeviceGetFieldValues, NVLINK_REPLAY_ERROR_COUNT_TOTAL and NVLINK_RECOVERY_ERROR_COUNT_TOTAL)",
		linkErrorLimit, linkErrorWindow))}
}

// linksDown reports NVLinks that were active and no longer are (nvmlDeviceGetNvLinkState).
func (h *history) linksDown(links linkCounts) []gpu.Cause {
	var down []string
	for _, number := range links.up {
		h.seenUp[number] = true
	}
	for number := range nvml.NVLINK_MAX_LINKS {
		if h.seenUp[number] && !slices.Contains(links.up, number) {
			down = append(down, strconv.Itoa(number))
		}
	}
	if len(down) == 0 {
		return nil
	}
	return []gpu.Cause{newCause("NVLINK_DOWN", fmt.Sprintf(
		"NVLinks that were up are down: %s (nvmlDeviceGetNvLinkState)", strings.Join(down, ", ")))}
}

// compareLinks reports GPUs that have fewer NVLinks into the NVSwitches than others of their model, also where no scan found
// them up.
func compareLinks(gpus []*scannedGPU) {
	most := map[string]int{}
	for _, c := range gpus {
		most[c.gpu.Product] = max(most[c.gpu.Product], c.links.fabric)
	}
	for _, c := range gpus {
		missing := c.device != nil && c.links.exist && c.links.fabric < most[c.gpu.Product] && len(c.links.direct) == 0
		reported := slices.ContainsFunc(c.gpu.Health.Causes, func(cause gpu.Cause) bool { return cause.Code == "NVLINK_DOWN" })
		if missing && !reported {
			c.gpu.Health.Causes = append(c.gpu.Health.Causes, newCause("NVLINK_DOWN", fmt.Sprintf(
				"%d of its NVLinks into the NVSwitches are up, other GPUs of its model have %d (nvmlDeviceGetNvLinkState)",
				c.links.fabric, most[c.gpu.Product])))
		}
	}
}

// checkFabric reports a registration with the NVLink fabric that failed or is not finished (nvmlDeviceGetGpuFabricInfo). One
// that has not started counts only for a GPU with links into NVSwitches.
func checkFabric(info nvml.GpuFabricInfo, links linkCounts) []gpu.Cause {
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) != nvml.SUCCESS:
		return []gpu.Cause{newCause("FABRIC_ERROR", fmt.Sprintf(
			"the GPU could not join its NVLink fabric: nvmlDeviceGetGpuFabricInfo reports %s", codeName(nvml.Return(info.Status))))}
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS,
		info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED && links.fabric > 0:
		return []gpu.Cause{newCause("FABRIC_NOT_READY",
			"the GPU has not joined its NVLink fabric yet (nvmlDeviceGetGpuFabricInfo), and CUDA does not start before it has")}
	}
	return nil
}
