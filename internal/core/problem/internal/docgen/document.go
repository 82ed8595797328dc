package main

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/core/health"
	"github.com/berth-gpu/berth/internal/core/problem"
)

const head = `<!-- Made by go generate ./internal/core/problem; do not edit. -->
# Everything that can be wrong

Berth names what is wrong by a code that does not change. The message beside a code says what was found and where; this
page says what it means and what to do. Severity: *error* prevents the correct use of a GPU, or of all GPUs; *warning* is a
fault that leaves the GPUs usable; *info* needs no action.
`

const xidHead = `
## XIDs

The class says what the GPU's health becomes: *ignore* nothing; *degrade* advertised, with a warning; *restart-app*
the same where the driver says that nothing needs repair, and otherwise not advertised; *drain* not allocated to new pods;
*inspect* not advertised; *reset* and *reboot* not advertised until that was done. [health.md](health.md) says what proves that. The
configuration can override it.

| XID | name | class | meaning |
|---|---|---|---|
`

// document is the page.
func document() []byte {
	var out strings.Builder
	out.WriteString(head)
	list := problem.All()
	for _, area := range problem.Areas() {
		fmt.Fprintf(&out, "\n## %s%s\n", strings.ToUpper(string(area[:1])), area[1:])
		for _, p := range list {
			if p.Area == area {
				fmt.Fprintf(&out, "\n### %s\n\n*%s*: %s\n\n%s\n\n**Fix.** %s\n\n**Seen in** %s.\n", p.Code, p.Severity, p.Title, p.Meaning, p.Fix, p.Seen)
			}
		}
	}
	out.WriteString(xidHead)
	for _, x := range health.XIDs() {
		class := string(x.Class)
		if health.DefaultIgnoredXIDs()[x.Code] && x.Class != health.Ignore {
			class = "ignore by default; " + class + " where it is counted"
		}
		fmt.Fprintf(&out, "| %d | `%s` | %s | %s |\n", x.Code, x.Mnemonic, class, x.Meaning)
	}
	return []byte(out.String())
}
