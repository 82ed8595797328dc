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

// The maximum durations of a call. A reset waits for the GPU's firmware, and for NVSwitches.
const (
	usualTime = 30 * time.Second
	resetTime = 3 * time.Minute
)

// Deps are the dependencies of an SMI.
type Deps struct {
	// Program is the argv prefix of nvidia-smi, for example of a program that replaces it in tests. When it is empty,
	// each call searches for nvidia-smi under DriverRoot, since a driver may be installed later.
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
	// running describes the running program and the time of its start.
	running atomic.Pointer[string]
}

// New returns an SMI; it starts nothing.
func New(deps Deps) *SMI {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &SMI{deps: deps, slot: make(chan struct{}, 1)}
}

// timeSlices are the names of time slices, by the numbers that nvidia-smi compute-policy takes.
func timeSlices() []string { return []string{"default", "short", "medium", "long"} }

// SetTimeSlice sets how long a process has a GPU before the next one's turn: default, short, medium or long; the empty
// name is the default. It applies to all processes of the GPU until the next reset or reboot.
func (s *SMI) SetTimeSlice(ctx context.Context, uuid gpu.UUID, slice string) error {
	number := 0
	if slice != "" {
		number = slices.Index(timeSlices(), slice)
	}
	if number < 0 {
		return fmt.Errorf("set time slice of GPU %s: %q is not a time slice; use %s", uuid, slice, strings.Join(timeSlices(), ", "))
	}
	if err := checkUUIDs(uuid); err != nil {
		return fmt.Errorf("set time slice: %w", err)
	}
	if err := s.run(ctx, usualTime, "compute-policy", "-i", string(uuid), "--set-timeslice="+strconv.Itoa(number)); err != nil {
		return fmt.Errorf("set time slice of GPU %s to %s: %w", uuid, timeSlices()[number], err)
	}
	return nil
}

// ResetGPUs resets GPUs, all in one call. If any program has one of them open, none is reset.
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

// Touch creates the driver's missing device nodes, including those of new MIG devices: nvidia-smi runs nvidia-modprobe
// for missing nodes when it opens each device.
func (s *SMI) Touch(ctx context.Context) error {
	if err := s.run(ctx, usualTime, "-L"); err != nil {
		return fmt.Errorf("create the driver's device nodes: %w", err)
	}
	return nil
}

// checkUUIDs refuses everything but UUIDs of GPUs, so that nothing else becomes an argument, and an empty list, which
// nvidia-smi would interpret as every GPU.
func checkUUIDs(uuids ...gpu.UUID) error {
	if len(uuids) == 0 {
		return fmt.Errorf("no GPU was given")
	}
	for _, uuid := range uuids {
		digits, ok := strings.CutPrefix(string(uuid), "GPU-")
		other := func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF-", r) }
		if !ok || digits == "" || strings.ContainsFunc(digits, other) {
			return fmt.Errorf("%q is not the UUID of a GPU (GPU- and hexadecimal digits)", uuid)
		}
	}
	return nil
}
