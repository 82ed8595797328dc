package mps

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// Answer holds the limits that a control daemon reports. The texts are the daemon's own, because it rounds them.
type Answer struct {
	// PinnedMemory is a size such as "3G"; NVIDIA's manual shows whole GiB, rounded down. It is empty when the daemon
	// reported none.
	PinnedMemory           string  `json:"pinnedMemory"`
	ActiveThreadPercentage float64 `json:"activeThreadPercentage"`
}

// answer queries the limits that apply to the next client.
func (c control) answer(ctx context.Context) (Answer, error) {
	text, err := c.ask(ctx, commandTimeout, "get_default_active_thread_percentage")
	if err != nil {
		return Answer{}, err
	}
	percentage, err := parsePercentage(text)
	if err != nil {
		return Answer{}, err
	}
	text, err = c.ask(ctx, commandTimeout, "get_default_device_pinned_mem_limit 0")
	if err != nil {
		return Answer{}, err
	}
	return Answer{PinnedMemory: shorten(text), ActiveThreadPercentage: percentage}, nil
}

// percentageRounding is the precision of the percentage that a daemon reports.
const percentageRounding = 0.1

// judge compares an answer with the limits that were set. It returns an error when clients may get more than was set or
// when nothing was set, and a remark when the figures differ but clients get no more.
func (a Answer) judge(set Limits) (remark string, err error) {
	if math.Abs(a.ActiveThreadPercentage-float64(set.ActiveThreadPercentage)) >= percentageRounding {
		return "", fmt.Errorf("the control daemon reports %g %% after the active thread percentage was set to %d %%",
			a.ActiveThreadPercentage, set.ActiveThreadPercentage)
	}
	if set.PinnedMemoryMiB == NoLimit {
		return "", nil
	}
	if a.PinnedMemory == "" {
		return "", fmt.Errorf("the control daemon reports no memory limit after %d MiB were set", set.PinnedMemoryMiB)
	}
	differs := fmt.Sprintf("the control daemon reports %s after the memory limit was set to %d MiB", a.PinnedMemory, set.PinnedMemoryMiB)
	memory, unit, ok := parseMemory(a.PinnedMemory)
	switch {
	case !ok:
		return differs + ", which cannot be read", nil
	case memory >= set.PinnedMemoryMiB+unit:
		return "", fmt.Errorf("%s, which exceeds the limit by more than rounding", differs)
	case memory != set.PinnedMemoryMiB:
		return differs, nil
	}
	return "", nil
}

// parsePercentage parses a percentage such as "25.0".
func parsePercentage(text string) (float64, error) {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(value >= 0 && value <= 100) {
		return 0, fmt.Errorf("the control daemon reports %q, want a percentage such as 25.0", shorten(text))
	}
	return value, nil
}

// parseMemory parses a size such as "3G" or "1408M". It returns the size and the unit that it is rounded to in MiB, and
// false when the text is not a size.
func parseMemory(text string) (memory, unit int64, ok bool) {
	units := map[byte]int64{'M': 1, 'G': 1 << 10, 'T': 1 << 20}
	text = strings.TrimSuffix(strings.ToUpper(text), "B")
	if text == "" {
		return 0, 0, false
	}
	unit, known := units[text[len(text)-1]]
	value, err := strconv.ParseInt(strings.TrimSpace(text[:len(text)-1]), 10, 64)
	if !known || err != nil || value < 0 || value > gpu.MaxMPSMemoryMiB {
		return 0, 0, false
	}
	return value * unit, unit, true
}
