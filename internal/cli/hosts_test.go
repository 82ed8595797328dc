package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/golden"
	"github.com/berth-gpu/berth/internal/node/hostruntime/hosttest"
)

// TestDoctorOnHosts compares what berth doctor prints on a node of each distribution with testdata/hosts. No agent runs there, and the
// driver has no GPU.
func TestDoctorOnHosts(t *testing.T) {
	for _, name := range hosttest.Names() {
		t.Run(name, func(t *testing.T) {
			host, err := hosttest.New(name)
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			var out, errs bytes.Buffer
			code := Run(t.Context(), Deps{Out: &out, Err: &errs, Name: "berth"}, []string{"doctor", "--node-local", "--host-root", host.Root, "--proc", host.Proc})
			if code != 1 || errs.Len() > 0 {
				t.Errorf("exit code %d, standard error %q; want 1 (there is no agent) and nothing", code, errs.String())
			}
			got := strings.ReplaceAll(out.String(), host.Root, "")
			golden.File(t, filepath.Join("testdata", "hosts", name+".golden"), got)
		})
	}
}
