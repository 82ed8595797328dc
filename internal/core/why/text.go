package why

import (
	"fmt"
	"strings"

	"github.com/berth-gpu/berth/internal/core/phrase"
)

// maxNames is how many names a sentence has.
const maxNames = 3

// waits begins a sentence.
func waits(because string) string { return "The pod waits because " + because }

// some names the first of many: "a, b, c and 5 more".
func some(names []string) string {
	if len(names) > maxNames {
		return phrase.Some(names, maxNames)
	}
	return phrase.And(names)
}

// cores prints thousandths of a core as cores.
func cores(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprint(milli / 1000)
	}
	return strings.TrimRight(fmt.Sprintf("%d.%03d", milli/1000, milli%1000), "0")
}

// memory prints MiB.
func memory(mebibytes int64) string {
	if mebibytes > 0 && mebibytes%1024 == 0 {
		return fmt.Sprintf("%d GiB", mebibytes/1024)
	}
	return fmt.Sprintf("%d MiB", mebibytes)
}

// plural picks a form by a count.
func plural(count int64, one, many string) string {
	if count == 1 {
		return one
	}
	return many
}

// broken says how many GPUs of a node cannot be used; nothing when all can.
func (o *Obstacle) broken() string {
	var parts []string
	if o.Draining > 0 {
		parts = append(parts, fmt.Sprintf("%d draining", o.Draining))
	}
	if o.Gone > 0 {
		parts = append(parts, fmt.Sprintf("%d unhealthy", o.Gone))
	}
	return strings.Join(parts, ", ")
}

// amount prints an amount of what lacks.
func (o *Obstacle) amount(of int64) string {
	switch o.Key {
	case "cpu":
		return cores(of) + plural(of/1000, " core", " cores")
	case "memory":
		return memory(of) + " of memory"
	}
	return fmt.Sprintf("%d %s", of, o.Key)
}
