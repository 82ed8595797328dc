package offer

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/core/gpu"
)

// problems collects the settings that cannot be met. Devices with the same problem share one entry.
type problems struct{ list []problem }

type problem struct {
	code string
	// kind and subjects name the devices: "GPU" with indices, "MIG device" with N:M.
	kind     string
	subjects []string
	sentence string
}

// add adds a sentence about one device. The sentence follows the device's name.
func (p *problems) add(code, kind, subject, sentence string) {
	at := slices.IndexFunc(p.list, func(have problem) bool {
		return have.code == code && have.kind == kind && have.sentence == sentence
	})
	if at < 0 {
		p.list = append(p.list, problem{code: code, kind: kind, sentence: sentence})
		at = len(p.list) - 1
	}
	p.list[at].subjects = append(p.list[at].subjects, subject)
}

// addGeneral adds a sentence that is not about a device.
func (p *problems) addGeneral(code, sentence string) {
	p.list = append(p.list, problem{code: code, sentence: sentence})
}

// causes returns the problems in the order in which they were found.
func (p *problems) causes() []gpu.Cause {
	var causes []gpu.Cause
	for _, one := range p.list {
		message := one.sentence
		if one.kind != "" {
			message = one.kind + " " + strings.Join(one.subjects, ", ") + ": " + message
		}
		causes = append(causes, gpu.Cause{Code: one.code, Message: message})
	}
	return causes
}
