package validate

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// maxEvidence is how much of the evidence a message has that is too long, in bytes.
const maxEvidence = 1024

// Message returns the result as JSON of at most limit bytes. When it is too long, it leaves out first the evidence of the steps that
// passed, then the end of the evidence, then devices; a limit of less than 2 KiB may not be kept.
func Message(result *v1alpha1.ValidationResult, limit int) ([]byte, error) {
	short := result.DeepCopy()
	shorten := []func(){
		func() {},
		func() {
			for i := range short.Steps {
				short.Steps[i].Evidence = ""
			}
		},
		func() { short.Evidence = cut(short.Evidence, maxEvidence) },
	}
	var text []byte
	for i := 0; ; i++ {
		switch {
		case i < len(shorten):
			shorten[i]()
		case len(short.Devices) > 0:
			half := len(short.Devices) / 2
			short.DevicesLeftOut += len(short.Devices) - half
			short.Devices = short.Devices[:half]
		default:
			return text, nil
		}
		var err error
		if text, err = json.Marshal(short); err != nil {
			return nil, fmt.Errorf("encode result: %w", err)
		}
		if len(text) <= limit {
			return text, nil
		}
	}
}

// cut returns the begin of a text, without a part of a character at its end.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "..."
}
