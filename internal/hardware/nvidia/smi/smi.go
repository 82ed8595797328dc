package smi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// How long a call takes at most. A reset waits for the card's firmware, and for NVSwitches.
const (
	usualTime = 30 * time.Second
	resetTime = 3 * time.Minute
)

// Deps is what an SMI needs.
type Deps struct {
	// Program is the argv prefix of nvidia-smi, of a program that stands in for it for instance. When it
	// is empty, nvidia-smi is looked for under DriverRoot at each call, since a driver may come later.
	Program []string
	// DriverRoot holds the driver's user-space files; "/" on a plain host.
	DriverRoot string
	// Env is the program's whole environment, as "NAME=value".
	Env []string
	// Timeout bounds each call. Zero means 30 seconds, and 3 minutes for a reset.
	Timeout time.Duration
	Log     *slog.Logger
}

// SMI runs nvidia-smi. It is safe for concurrent use; calls wait for one another.
type SMI struct {
	deps Deps
	// slot holds a token while a program runs.
	slot chan struct{}
	// running says what runs, and since when.
	running atomic.Pointer[string]
}

// New makes an SMI; it starts nothing.
func New(deps Deps) *SMI {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &SMI{deps: deps, slot: make(chan struct{}, 1)}
}

// timeSlices are the words for time slices, by the numbers that nvidia-smi compute-policy takes.
func timeSlices() []string { return []string{"default", "short", "medium", "long"} }

// SetTimeSlice sets how long a process has a GPU before the next one's turn: default, short, medium or long;
// the empty word is the default. It holds for all processes of the GPU until the next reset or reboot.
func (s *SMI) SetTimeSlice(ctx context.Context, uuid gpu.UUID, slice string) error {
	number := 0
	if slice != "" {
		number = slices.Index(timeSlices(), slice)
	}
	if number < 0 {
		return fmt.Errorf("set time slice of GPU %s: %q is no time slice; use %s", uuid, slice, strings.Join(timeSlices(), ", "))
	}
	if err := checkUUIDs(uuid); err != nil {
		return fmt.Errorf("set time slice: %w", err)
	}
	if err := s.run(ctx, usualTime, "compute-policy", "-i", string(uuid), "--set-timeslice="+strconv.Itoa(number)); err != nil {
		return fmt.Errorf("set time slice of GPU %s to %s: %w", uuid, timeSlices()[number], err)
	}
	return nil
}

// ResetGPUs resets GPUs, all in one call. A GPU that any program has open refuses, and so do the others then.
func (s *SMI) ResetGPUs(ctx context.Context, uuids []gpu.UUID) error {
	if err := checkUUIDs(uuids...); err != nil {
		return fmt.Errorf("reset GPUs: %w", err)
	}
	names := make([]string, len(uuids))
	for i, uuid := range uuids {
		names[i] = string(uuid)
	}
	list := strings.Join(names, ",")
	if err := s.run(ctx, resetTime, "--gpu-reset", "-i", list); err != nil {
		return fmt.Errorf("reset GPU %s: %w", list, err)
	}
	return nil
}

// Touch makes the driver's device nodes exist, those of new MIG devices included: nvidia-smi has
// nvidia-modprobe make what is missing when it opens each device.
func (s *SMI) Touch(ctx context.Context) error {
	if err := s.run(ctx, usualTime, "-L"); err != nil {
		return fmt.Errorf("make the driver's device nodes: %w", err)
	}
	return nil
}

// checkUUIDs refuses what is no UUID of a GPU, so that nothing else becomes an argument, and no
// UUID at all, which nvidia-smi would understand as every GPU.
func checkUUIDs(uuids ...gpu.UUID) error {
	if len(uuids) == 0 {
		return fmt.Errorf("no GPU was named")
	}
	for _, uuid := range uuids {
		digits, ok := strings.CutPrefix(string(uuid), "GPU-")
		other := func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF-", r) }
		if !ok || digits == "" || strings.ContainsFunc(digits, other) {
			return fmt.Errorf("%q is no UUID of a GPU (GPU- and hexadecimal digits)", uuid)
		}
	}
	return nil
}
