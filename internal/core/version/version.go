// Package version says which build of Berth a program is.
//
// hack/build.sh stamps the version and the commit at link time; a program that was built by other
// means takes them from what the go command put into it. It imports nothing of Berth.
package version

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// Set by the linker (-X); never written otherwise.
var number, commit string

// unknown stands for what a build does not say.
const unknown = "unknown"

// Info is which build a program is. No field is empty.
type Info struct {
	// Version is a tag such as v0.4.0, or one with the number of commits since; "devel" without one.
	Version string
	// Commit is the Git commit, with "-dirty" when files were changed.
	Commit string
	// Go is the Go version that compiled it, such as go1.26.8.
	Go string
}

// Current is the build of the running program.
func Current() Info {
	build, _ := debug.ReadBuildInfo()
	return from(number, commit, build)
}

// String is the line that `PROGRAM version` prints after the program's name.
func (i Info) String() string { return fmt.Sprintf("%s (commit %s, %s)", i.Version, i.Commit, i.Go) }

// from joins what the linker and the go command say; the linker's word goes first.
func from(number, commit string, build *debug.BuildInfo) Info {
	info := Info{Version: number, Commit: commit}
	if build != nil {
		info.Go = build.GoVersion
		if main := build.Main.Version; info.Version == "" && main != "(devel)" {
			info.Version = main
		}
		settings := map[string]string{}
		for _, setting := range build.Settings {
			settings[setting.Key] = setting.Value
		}
		if revision := settings["vcs.revision"]; info.Commit == "" && revision != "" {
			info.Commit = revision
			if settings["vcs.modified"] == "true" {
				info.Commit += "-dirty"
			}
		}
	}
	return Info{Version: cmp.Or(info.Version, "devel"), Commit: cmp.Or(info.Commit, unknown), Go: cmp.Or(info.Go, unknown)}
}
