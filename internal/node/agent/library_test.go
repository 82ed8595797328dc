package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLibraryReplaced: the agent ends once for each library file.
func TestLibraryReplaced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		run := func(file string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l := newLibraryWatch(dir, "boot", slog.New(slog.DiscardHandler))
			l.note(file)
			l.note(file) // never blocks
			return l.run(ctx)
		}
		for _, file := range []string{"/lib/libnvidia-ml.so.580", "/lib/libnvidia-ml.so.590"} {
			if err := run(file); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %v; want that the agent ends for it", file, err)
			}
			if err := run(file); err != nil {
				t.Errorf("%s again: %v; want that the agent goes on", file, err)
			}
		}
	})
}
