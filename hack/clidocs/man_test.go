package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManPages: each visible command has a page, and no page shows Markdown.
func TestManPages(t *testing.T) {
	pages, count := manPages(programs(), "v1.2.3"), 0
	for _, root := range programs() {
		walk(root, func(cmd *cobra.Command) {
			count++
			name := manName(cmd)
			text, ok := pages[name+".1"]
			title := `.TH "` + strings.ToUpper(name) + `" "1" "" "` + root.Name() + ` v1.2.3" "User Commands"`
			switch {
			case !ok:
				t.Errorf("%s has no page", cmd.CommandPath())
			case !strings.Contains(text, title+"\n"):
				t.Errorf("%s.1 does not have the title %s:\n%s", name, title, text)
			case !strings.Contains(text, ".SH NAME\n"+name+" - "):
				t.Errorf("%s.1 does not name the command as man -k expects it:\n%s", name, text)
			case strings.Contains(text, "```"), strings.Contains(text, "**"), strings.Contains(text, "]("):
				t.Errorf("%s.1 has Markdown:\n%s", name, text)
			}
			if cmd.HasExample() && !strings.Contains(text, ".SH EXAMPLES\n.EX\n") {
				t.Errorf("%s.1 has no examples", name)
			}
		})
	}
	if len(pages) != count {
		t.Errorf("%d pages, %d commands", len(pages), count)
	}
}
