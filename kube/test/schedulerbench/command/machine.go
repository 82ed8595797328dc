package command

import (
	"os"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/kube/test/schedulerbench/process"
	"github.com/berth-gpu/berth/kube/test/schedulerbench/report"
)

// readMachine describes this machine. What cannot be read is left out: it is for the reader only.
func readMachine() report.Machine {
	m := report.Machine{LoadBefore: loadAverage()}
	if cores, err := process.Cores(); err == nil {
		m.Cores = len(cores)
	}
	m.CPU = field("/proc/cpuinfo", "model name")
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 64); err == nil {
		m.MemoryGiB = kib / (1 << 20)
	}
	return m
}

// field returns the value of the first line "NAME: VALUE" of a file.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// loadAverage returns that of a minute.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}
