package gate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/hostconfig"
)

const (
	// defaultTimeout is how long a node waits for an operator.
	defaultTimeout = 10 * time.Minute
	// maxStack bounds the file, which a ConfigMap has.
	maxStack = 1 << 20
	// settingsRest is how long a changed file has to be equal before it is read: an editor that saves in place writes it in parts.
	settingsRest = 200 * time.Millisecond
)

// SettingsFile reads the settings of the gate from a file with the spec of a GPUStack. Without a file the gate is off. A file that cannot
// be read is a problem of the source "gate-settings", and the last settings stay in force; at first those are the defaults.
type SettingsFile struct {
	path   string
	clock  clock.Clock
	report func(source string, problems ...gpu.Cause)

	mu sync.Mutex
	// current is from text; at first from nothing.
	text    string
	read    bool
	current v1alpha1.Gate
}

// NewSettingsFile returns the settings of a file; empty for none. Report replaces the problems of a source. While the gate cannot serve,
// because the agent has no API server or no pod of its own, it is off.
func NewSettingsFile(path string, serves bool, clock clock.Clock, report func(source string, problems ...gpu.Cause)) *SettingsFile {
	if !serves {
		path = ""
	}
	return &SettingsFile{path: path, clock: clock, report: report}
}

// Settings returns the settings in force. It waits for a file that has changed to come to rest.
func (s *SettingsFile) Settings() v1alpha1.Gate {
	if s.path == "" {
		return v1alpha1.Gate{Mode: v1alpha1.GateDisabled}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := hostconfig.ReadFile(s.path)
	if s.read && err == nil && string(text) != s.text {
		s.clock.Sleep(settingsRest)
		before := text
		if text, err = hostconfig.ReadFile(s.path); err == nil && !bytes.Equal(text, before) {
			return s.current // It is read at the next call.
		}
	}
	if s.read && err == nil && string(text) == s.text {
		s.report("gate-settings")
		return s.current
	}
	spec, err := parseSettings(text, err)
	if err != nil {
		s.report("gate-settings", gpu.Cause{Code: "GATE_SETTINGS", Message: fmt.Sprintf("read %s: %v; the last settings of the gate stay in force", s.path, err)})
		if s.current.Mode == "" {
			s.current = completeSettings(v1alpha1.Gate{})
		}
		return s.current
	}
	s.report("gate-settings")
	s.text, s.read, s.current = string(text), true, completeSettings(spec.Gate)
	return s.current
}

// parseSettings reads a spec. A file without any content is an error: the chart writes a version at least, and defaults would shut the
// gate.
func parseSettings(text []byte, err error) (v1alpha1.GPUStackSpec, error) {
	var spec *v1alpha1.GPUStackSpec
	if err == nil && len(text) > maxStack {
		err = fmt.Errorf("it has more than %d bytes", maxStack)
	}
	if err == nil {
		err = yaml.Unmarshal(text, &spec)
	}
	switch {
	case err != nil:
		return v1alpha1.GPUStackSpec{}, err
	case spec == nil:
		return v1alpha1.GPUStackSpec{}, errors.New("it is empty (for all defaults, write gate: {})")
	}
	return *spec, nil
}

// completeSettings fills in the defaults.
func completeSettings(g v1alpha1.Gate) v1alpha1.Gate {
	g.Mode = cmp.Or(g.Mode, v1alpha1.GateEnforce)
	g.TaintKey = cmp.Or(g.TaintKey, v1alpha1.TaintNotValidated)
	g.OnTimeout = cmp.Or(g.OnTimeout, v1alpha1.GateHold)
	g.Timeout = cmp.Or(g.Timeout, metav1.Duration{Duration: defaultTimeout})
	return g
}
