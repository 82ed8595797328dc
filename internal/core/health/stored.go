package health

import (
	"encoding/json"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// storedCode holds the keys of an error code in a record that is kept over a restart. XIDs and SXIDs have keys of their own, as
// every version of Berth writes them, so that a record outlasts an upgrade and a rollback.
type storedCode struct {
	XID    uint64 `json:"xid,omitempty"`
	SXID   uint64 `json:"sxid,omitempty"`
	Kind   string `json:"codeKind,omitempty"`
	Number uint64 `json:"codeNumber,omitempty"`
}

func store(code gpu.Code) storedCode {
	switch code.Kind {
	case gpu.KindXID:
		return storedCode{XID: code.Number}
	case gpu.KindSXID:
		return storedCode{SXID: code.Number}
	}
	return storedCode{Kind: code.Kind, Number: code.Number}
}

func (s storedCode) code() gpu.Code {
	switch {
	case s.XID != 0:
		return gpu.XID(s.XID)
	case s.SXID != 0:
		return gpu.SXID(s.SXID)
	}
	return gpu.Code{Kind: s.Kind, Number: s.Number}
}

// The types without their methods, for encoding/json.
type (
	standingFields Standing
	incidentFields Incident
)

// MarshalJSON writes the fields and the keys of the code.
func (s Standing) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		storedCode
		standingFields
	}{store(s.Code), standingFields(s)})
}

// UnmarshalJSON reads what MarshalJSON wrote, in this version or an earlier one.
func (s *Standing) UnmarshalJSON(blob []byte) error {
	var stored struct {
		storedCode
		standingFields
	}
	if err := json.Unmarshal(blob, &stored); err != nil {
		return err
	}
	*s = Standing(stored.standingFields)
	s.Code = stored.code()
	return nil
}

// MarshalJSON writes the fields and the keys of the code.
func (i Incident) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		storedCode
		incidentFields
	}{store(i.Code), incidentFields(i)})
}

// UnmarshalJSON reads what MarshalJSON wrote, in this version or an earlier one.
func (i *Incident) UnmarshalJSON(blob []byte) error {
	var stored struct {
		storedCode
		incidentFields
	}
	if err := json.Unmarshal(blob, &stored); err != nil {
		return err
	}
	*i = Incident(stored.incidentFields)
	i.Code = stored.code()
	return nil
}
