package health

import (
	"time"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// SameFault is the largest distance in time between an XID 48 and an XID 94 of one memory error.
const SameFault = 5 * time.Second

// The XIDs of memory errors: the double-bit error, and the report that it was contained.
const (
	xidDoubleBit = 48
	xidContained = 94
)

// Contains reports whether GPUs of a compute capability contain memory errors: an uncorrectable error ends the programs that use
// the memory, and the rest of the GPU continues to work. GA100 (8.0) does, the other GPUs of Ampere and Ada (8.x) do not, and
// GH100 (9.0) and all later ones do.
func Contains(capability gpu.Version) bool {
	return capability == gpu.Version{Major: 8} || capability.Major >= 9
}

// containedClass returns the class of a memory error in DRAM on a GPU that contains such errors:
//
//	recovery action   class     state
//	None              degrade   Degraded: allocated; the row is remapped with the next reset
//	DrainAndReset     drain     Draining: not allocated to new pods; running ones and MIG siblings keep their devices
//	any other, or     reset     NeedsReset
//	not known
//
// The causes ECC_DOUBLE_BIT (errors in DRAM alone), ROW_REMAP_PENDING and RECOVERY_ACTION, and an XID 48 that comes with an
// XID 94, follow it. Errors in SRAM (ECC_SRAM_UNCORRECTABLE) and errors that were not contained (XID 95) do not.
func containedClass(recovery gpu.Recovery) Class {
	switch recovery {
	case gpu.RecoveryNone:
		return Degrade
	case gpu.RecoveryDrainAndReset:
		return Drain
	}
	return Reset
}

// class returns the present class of a standing error. A code of an unknown kind requires inspection.
func (r *Record) class(s *Standing, rules *Rules) Class {
	switch s.Code.Kind {
	case gpu.KindXID:
		return r.classOfXID(s, rules)
	case gpu.KindSXID:
		if rules.Checks.NoXIDs {
			return Ignore
		}
		return Reset
	}
	return Inspect
}

// classOfXID returns the present class of a standing XID, which depends on the GPU and on its other errors.
func (r *Record) classOfXID(s *Standing, rules *Rules) Class {
	xid := s.Code.Number
	class := rules.classOfXID(xid, s.Decoded)
	if _, overridden := rules.Overrides[XIDCode(xid)]; overridden || class == Ignore {
		return class
	}
	switch {
	case xid == xidDoubleBit && r.Contains && s.With94:
		return containedClass(r.Recovery)
	case xid == xidFallenOff && class == Reboot && s.Answered >= enoughAnswers:
		return Reset
	}
	return class
}

// state returns the verdict on a device that has an error of the class. After an error that ends an application the recovery
// action decides: None means that nothing needs repair, DrainAndReset that the GPU must become free.
func (r *Record) state(class Class) gpu.State {
	if class == RestartApp {
		switch {
		case r.Recovery == gpu.RecoveryNone:
			return gpu.Degraded
		case r.Recovery == gpu.RecoveryDrainAndReset && r.Contains:
			return gpu.Draining
		}
	}
	return class.state()
}
