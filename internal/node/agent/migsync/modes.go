package migsync

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/berth-gpu/berth/internal/core/gpu"
	"github.com/berth-gpu/berth/internal/node/migapply"
	"github.com/berth-gpu/berth/internal/node/statefile"
)

// ModesFile is the name of the file with the GPUs whose MIG mode was turned on for claims.
const ModesFile = "mig-modes.json"

// modesSource is the source of the problems with the file.
const modesSource = "mig-modes"

// ModesDeps are the dependencies of Modes.
type ModesDeps struct {
	// StateDir is the folder of the file. Content of another boot than BootID is void: a GPU that changes its mode without a reset has
	// MIG off after a reboot.
	StateDir string
	BootID   string
	// FileLost reports a file that could not be used, with the consequences.
	FileLost func(source string, result statefile.Result, without string)
	// Report replaces the problems of a source. It must not block.
	Report func(source string, problems ...gpu.Cause)
	// Fault is called at each step of a write of the file; an error stops it there. For tests; nil for nothing.
	Fault func(statefile.Step) error
}

// Modes are the GPUs whose MIG mode the agent has turned on for claims, and not off again. A GPU is in the file before its mode is
// turned on. Only the writer of the ledger changes it.
type Modes struct {
	deps ModesDeps
	list atomic.Pointer[[]gpu.UUID]
	// writes is true from the first attempt as the writer of the ledger; saved is false while the file does not have the list.
	writes bool
	saved  bool
}

// OpenModes reads the file.
func OpenModes(deps ModesDeps) *Modes {
	m := &Modes{deps: deps}
	m.load()
	return m
}

// RemoveModes removes the file. It is no error when there is none.
func RemoveModes(stateDir string) error { return statefile.Remove(filepath.Join(stateDir, ModesFile)) }

func (m *Modes) file() statefile.File[[]gpu.UUID] {
	return statefile.File[[]gpu.UUID]{
		Path: filepath.Join(m.deps.StateDir, ModesFile), What: "the GPUs whose MIG mode was turned on for claims", Format: "berth-mig-modes", Version: 1,
		BootID: m.deps.BootID, Fault: m.deps.Fault,
	}
}

func (m *Modes) load() {
	list, result := m.file().Load()
	if result.Lost() {
		m.deps.FileLost(modesSource, result, "MIG stays on where dynamicMIG is removed before a claim turns MIG on or off again; the layout all-disabled turns it off")
	}
	m.list.Store(&list)
	m.saved = true
}

// get returns the GPUs, sorted. The list must not be changed.
func (m *Modes) get() []gpu.UUID { return *m.list.Load() }

// take reads the file again when this agent has become the writer of the ledger: the agent before it may have written it since.
func (m *Modes) take(writes bool) {
	if writes && !m.writes {
		m.load()
	}
	m.writes = writes
}

// turnOn adds the GPUs whose MIG mode is about to be turned on for claims.
func (m *Modes) turnOn(snapshot *gpu.Snapshot, claimed []migapply.Want) {
	list := slices.Clone(m.get())
	for _, want := range claimed {
		if device := snapshot.GPU(want.UUID); device != nil && want.Wanted.Enabled && !device.MIG.Enabled && !slices.Contains(list, want.UUID) {
			list = append(list, want.UUID)
		}
	}
	m.set(list)
}

// ended removes the GPUs that have MIG off, and those that have another layout.
func (m *Modes) ended(plan *wantPlan, statuses []migapply.Status) {
	list := slices.Clone(m.get())
	for i := range statuses {
		if status := &statuses[i]; status.State == migapply.Applied && (!status.Plan.Wanted.Enabled || !plan.Dynamic[status.UUID]) {
			list = slices.DeleteFunc(list, func(id gpu.UUID) bool { return id == status.UUID })
		}
	}
	m.set(list)
}

// isSaved reports whether the file has the list, as far as it is this agent's to write.
func (m *Modes) isSaved() bool { return m.saved || !m.writes }

// set replaces the list, in memory also when it cannot be written.
func (m *Modes) set(list []gpu.UUID) {
	if !m.writes {
		return
	}
	slices.Sort(list)
	if m.saved && slices.Equal(list, m.get()) {
		return
	}
	m.list.Store(&list)
	err := m.file().Save(list)
	if m.saved = err == nil; !m.saved {
		err = fmt.Errorf("%w; when the agent ends before it is written, MIG stays on where dynamicMIG is removed", err)
		m.deps.Report(modesSource, gpu.Cause{Code: "STATE_UNWRITABLE", Message: err.Error()})
		return
	}
	m.deps.Report(modesSource)
}
