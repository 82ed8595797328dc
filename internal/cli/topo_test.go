package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/api/v1alpha1"
)

// TestTopologyOf reads the links of objects of other agents, and says in one line what is wrong with those that cannot be read.
func TestTopologyOf(t *testing.T) {
	for name, test := range map[string]struct {
		gpus    int
		rows    []string
		pci     []string
		want    [][]string
		wantErr string
	}{
		"no GPUs":           {want: [][]string{}},
		"an older agent":    {gpus: 2, rows: []string{"X NV4", "NV4 X"}, want: [][]string{{"X", "NV4"}, {"NV4", "X"}}},
		"with PCIe paths":   {gpus: 2, rows: []string{"X NV4", "NV4 X"}, pci: []string{"X PIX", "PIX X"}, want: [][]string{{"X", "NV4"}, {"NV4", "X"}}},
		"no links":          {gpus: 2, wantErr: "read topology of node-0: the links of its 2 GPUs are not known"},
		"a row too few":     {gpus: 2, rows: []string{"X"}, wantErr: "read topology of node-0: parse topology: it has 1 rows for 2 GPUs, want one for each"},
		"rows of no GPUs":   {rows: []string{"X"}, wantErr: "read topology of node-0: parse topology: it has 1 rows for 0 GPUs, want one for each"},
		"a short row":       {gpus: 2, rows: []string{"X NV4", "X"}, wantErr: "read topology of node-0: parse topology: row 1: it has 1 links, want 2, one for each row"},
		"a bad PCIe matrix": {gpus: 2, rows: []string{"X NV4", "NV4 X"}, pci: []string{"X"}, wantErr: "read topology of node-0: parse PCIe topology: it has 1 rows, but the topology has 2, want the same number"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1alpha1.GPUNode{}
			node.Name = "node-0"
			node.Status = v1alpha1.GPUNodeStatus{Devices: make([]v1alpha1.GPUDevice, test.gpus), Topology: test.rows, PCITopology: test.pci}
			got, err := topologyOf(node)
			if test.wantErr != "" {
				if err == nil || err.Error() != test.wantErr {
					t.Fatalf("got %v, %v\nwant %s", got, err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Links); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
		})
	}
}
