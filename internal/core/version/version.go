// Package version identifies the build of a program.
//
// hack/build.sh sets the version and the commit at link time; a program that was built in another way takes them from
// the build information that the go command embeds. It imports nothing of Berth.
package version

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// Set by the linker (-X); never written otherwise.
var number, commit string

// unknown is the value of a property that the build does not record.
const unknown = "unknown"

// Info identifies a build. No field is empty.
type Info struct {
	// Version is a tag such as v0.4.0, or a tag with the number of commits since; "devel" if there is no tag.
	Version string
	// Commit is the Git commit, with "-dirty" when files were changed.
	Commit string
	// Go is the Go version that compiled it, such as go1.26.8.
	Go string
}

// Current returns the build of the running program.
func Current() Info {
	build, _ := debug.ReadBuildInfo()
	return from(number, commit, build)
}

// String returns what `PROGRAM version` prints after the program's name.
func (i Info) String() string { return fmt.Sprintf("%s (commit %s, %s)", i.Version, i.Commit, i.Go) }

// from combines the values of the linker and of the go command; the linker's take precedence.
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
