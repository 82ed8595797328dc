// Package stackfile reads the settings of the gate from a file with the spec of a GPUStack, as the chart mounts it into the agent.
//
// It guarantees that a file which cannot be read leaves the last settings in force, and that fields of later releases are ignored: the
// file of a new release is there before its agents are. It reads one file, of at most 1 MiB, and writes nothing. It must not import the
// agent.
package stackfile

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-gpu/berth/api/v1alpha1"
	"github.com/berth-gpu/berth/internal/core/gpu"
)

const (
	// defaultTimeout is how long a node waits for an operator.
	defaultTimeout = 10 * time.Minute
	// maxStack bounds the file, which a ConfigMap has.
	maxStack = 1 << 20
)

// File reads the settings of the gate from a file with the spec of a GPUStack. Without a file the gate is off. A file that cannot be
// read is a problem of the source "gate-settings", and the last settings stay in force; at first those are the defaults.
type File struct {
	path   string
	report func(source string, problems ...gpu.Cause)

	mu      sync.Mutex
	text    string
	current v1alpha1.Gate
}

// New returns the settings of a file; empty for none. Report replaces the problems of a source. While the gate cannot serve, because
// the agent has no API server or no pod of its own, it is off.
func New(path string, serves bool, report func(source string, problems ...gpu.Cause)) *File {
	if !serves {
		path = ""
	}
	return &File{path: path, report: report}
}

// Settings returns the settings in force.
func (s *File) Settings() v1alpha1.Gate {
	if s.path == "" {
		return v1alpha1.Gate{Mode: v1alpha1.GateDisabled}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := readBounded(s.path)
	if err == nil && text == s.text && s.current.Mode != "" {
		s.report("gate-settings")
		return s.current
	}
	var spec v1alpha1.GPUStackSpec
	if err == nil {
		err = yaml.Unmarshal([]byte(text), &spec)
	}
	if err != nil {
		s.report("gate-settings", gpu.Cause{Code: "GATE_SETTINGS", Message: fmt.Sprintf("read %s: %v; the last settings of the gate stay in force", s.path, err)})
		if s.current.Mode == "" {
			s.current = Complete(v1alpha1.Gate{})
		}
		return s.current
	}
	s.report("gate-settings")
	s.text, s.current = text, Complete(spec.Gate)
	return s.current
}

// Complete fills in the defaults.
func Complete(g v1alpha1.Gate) v1alpha1.Gate {
	g.Mode = cmp.Or(g.Mode, v1alpha1.GateEnforce)
	g.TaintKey = cmp.Or(g.TaintKey, v1alpha1.TaintNotValidated)
	g.OnTimeout = cmp.Or(g.OnTimeout, v1alpha1.GateHold)
	g.Timeout = cmp.Or(g.Timeout, metav1.Duration{Duration: defaultTimeout})
	return g
}

func readBounded(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	blob, err := io.ReadAll(io.LimitReader(file, maxStack))
	return string(blob), err
}
