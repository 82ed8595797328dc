package version

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestFrom(t *testing.T) {
	build := func(main string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: main}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "abc"}
	tests := map[string]struct {
		number string
		commit string
		build  *debug.BuildInfo
		want   string
	}{
		"stamped":                {"v1.2.3", "def", build("(devel)", revision), "v1.2.3 (commit def, go1.26.8)"},
		"go build in a checkout": {"", "", build("(devel)", revision), "devel (commit abc, go1.26.8)"},
		"with changes": {"", "", build("(devel)", revision,
			debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "devel (commit abc-dirty, go1.26.8)"},
		"go install of a tag": {"", "", build("v1.2.3"), "v1.2.3 (commit unknown, go1.26.8)"},
		"nothing is known":    {"", "", nil, "devel (commit unknown, unknown)"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := from(tc.number, tc.commit, tc.build).String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCurrent(t *testing.T) {
	if got := Current(); got.Go != runtime.Version() || got.Version == "" || got.Commit == "" {
		t.Errorf("%+v", got)
	}
}
