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

The class of an XID says what becomes of the GPU; the configuration can override it (` + "`healthClasses`" + `). [health.md](health.md) says what
proves that a fault is repaired.

| class | severity | effect | fix |
|---|---|---|---|
`

const xidTableHead = `
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
	for _, class := range health.Classes() {
		fmt.Fprintf(&out, "| *%s* | %s | %s | %s |\n", class, class.Severity(), class.Effect(), class.Fix())
	}
	out.WriteString(xidTableHead)
	for _, x := range health.XIDs() {
		class := string(x.Class)
		if health.DefaultIgnoredXIDs()[x.Code] && x.Class != health.Ignore {
			class = "ignore by default; " + class + " where it is counted"
		}
		fmt.Fprintf(&out, "| %d | `%s` | %s | %s |\n", x.Code, x.Mnemonic, class, x.Meaning)
	}
	return []byte(out.String())
}
