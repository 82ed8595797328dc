package mps

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Answer is what a control daemon says of the limits that were set: its own words, since its rounding is its own.
type Answer struct {
	// PinnedMemory is such as "3G"; NVIDIA's manual shows whole GiB, rounded down. Empty when the daemon said nothing.
	PinnedMemory           string  `json:"pinnedMemory"`
	ActiveThreadPercentage float64 `json:"activeThreadPercentage"`
}

// answer reads back what the next client gets.
func (c control) answer(ctx context.Context) (Answer, error) {
	text, err := c.ask(ctx, answerTime, "get_default_active_thread_percentage")
	if err != nil {
		return Answer{}, err
	}
	percentage, err := parsePercentage(text)
	if err != nil {
		return Answer{}, err
	}
	text, err = c.ask(ctx, answerTime, "get_default_device_pinned_mem_limit 0")
	if err != nil {
		return Answer{}, err
	}
	return Answer{PinnedMemory: shorten(text), ActiveThreadPercentage: percentage}, nil
}

// percentageRounding is the last digit of a percentage that a daemon answers.
const percentageRounding = 0.1

// judge compares an answer with what was set. An error means that clients may get more than was set, or that nothing was
// set; a remark that the figures differ, and clients get no more.
func (a Answer) judge(set Limits) (remark string, err error) {
	if math.Abs(a.ActiveThreadPercentage-float64(set.ActiveThreadPercentage)) >= percentageRounding {
		return "", fmt.Errorf("the control daemon answers %g %% after %d %% were set as active thread percentage", a.ActiveThreadPercentage, set.ActiveThreadPercentage)
	}
	if set.PinnedMemoryMiB == NoLimit {
		return "", nil
	}
	if a.PinnedMemory == "" {
		return "", fmt.Errorf("the control daemon answers no memory limit after %d MiB were set", set.PinnedMemoryMiB)
	}
	differs := fmt.Sprintf("the control daemon answers %s after %d MiB were set as memory limit", a.PinnedMemory, set.PinnedMemoryMiB)
	memory, unit, ok := parseMemory(a.PinnedMemory)
	switch {
	case !ok:
		return differs + ", which cannot be read", nil
	case memory >= set.PinnedMemoryMiB+unit:
		return "", fmt.Errorf("%s, which is more than rounding explains", differs)
	case memory != set.PinnedMemoryMiB:
		return differs, nil
	}
	return "", nil
}

// parsePercentage reads "25.0".
func parsePercentage(text string) (float64, error) {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(value >= 0 && value <= 100) {
		return 0, fmt.Errorf("the control daemon answers %q where a percentage such as 25.0 is due", shorten(text))
	}
	return value, nil
}

// parseMemory reads "3G" or "1408M" as MiB, with the unit that the answer is rounded to; false for what is no size.
func parseMemory(text string) (memory, unit int64, ok bool) {
	units := map[byte]int64{'M': 1, 'G': 1 << 10, 'T': 1 << 20}
	text = strings.TrimSuffix(strings.ToUpper(text), "B")
	if text == "" {
		return 0, 0, false
	}
	unit, known := units[text[len(text)-1]]
	value, err := strconv.ParseInt(strings.TrimSpace(text[:len(text)-1]), 10, 64)
	if !known || err != nil || value < 0 || value > maxMemoryMiB {
		return 0, 0, false
	}
	return value * unit, unit, true
}
