package replay

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/core/fleet"
)

const (
	nodeHead = "sn,cpu_milli,memory_mib,gpu,model\n"
	podHead  = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
)

func TestReadNodes(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"empty file":      {"", "n.csv:1: an empty file; want the columns sn,cpu_milli,memory_mib,gpu,model"},
		"column missing":  {"sn,cpu_milli,memory_mib,model\n", `n.csv:1: column gpu: missing in the header "sn,cpu_milli,memory_mib,model"; want the columns sn,cpu_milli,memory_mib,gpu,model`},
		"column twice":    {"sn,sn,cpu_milli,memory_mib,gpu,model\n", "n.csv:1: column sn: given twice; want each column once"},
		"no number":       {nodeHead + "a,1,1,x,T4\n", `n.csv:2: column gpu: "x"; want a whole number from 0 to 64`},
		"too many GPUs":   {nodeHead + "a,1,1,65,T4\n", `n.csv:2: column gpu: "65"; want a whole number from 0 to 64`},
		"negative":        {nodeHead + "a,-1,1,1,T4\n", `n.csv:2: column cpu_milli: "-1"; want a whole number from 0 to 1099511627776`},
		"name twice":      {nodeHead + "a,1,1,1,T4\na,1,1,1,T4\n", `n.csv:3: column sn: "a"; want each name once, and line 2 has it`},
		"name missing":    {nodeHead + ",1,1,1,T4\n", `n.csv:2: column sn: ""; want a name`},
		"fields missing":  {nodeHead + "a,1\n", "n.csv:2: 2 fields; want 5, as in the header"},
		"broken quotes":   {nodeHead + "\"a,1,1,1,T4\n", `n.csv:2: extraneous or missing " in quoted-field; want comma-separated values`},
		"no GPU anywhere": {nodeHead + "a,1,1,0,\n", "n.csv:2: column gpu: 1 nodes without a GPU; want at least one GPU"},
		"good":            {"\ufeff" + nodeHead + "a,1,1,1,T4\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ReadNodes("n.csv", strings.NewReader(test.text))
			if got := message(err); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestReadPods(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"share above 1000":  {podHead + "p,1,1,1,1200,\n", `p.csv:2: column gpu_milli: "1200"; want a whole number from 0 to 1000`},
		"share without GPU": {podHead + "p,1,1,0,500,\n", `p.csv:2: column gpu_milli: "500"; want 0, since num_gpu is 0`},
		"GPU without share": {podHead + "p,1,1,2,0,\n", `p.csv:2: column gpu_milli: "0"; want 1 to 1000, since num_gpu is 2`},
		"column missing":    {"name,cpu_milli,memory_mib,num_gpu\n", `p.csv:1: column gpu_milli: missing in the header "name,cpu_milli,memory_mib,num_gpu"; want the columns name,cpu_milli,memory_mib,num_gpu,gpu_milli`},
		"no pods":           {podHead, "p.csv:1: no pods; want at least one line below the header"},
		"second line":       {podHead + "p,1,1,1,1000,T4\nq,1,1,1,1e3,\n", `p.csv:3: column gpu_milli: "1e3"; want a whole number from 0 to 1000`},
		"no gpu_spec":       {"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ReadPods("p.csv", strings.NewReader(test.text))
			if got := message(err); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
	got, err := ReadPods("p.csv", strings.NewReader(podHead+"p,1,2,3,1000,T4|A10|T4\n"))
	want := []fleet.Shape{{CPU: 1, Memory: 2, GPUs: 3, Share: 1000, Models: fleet.Models("A10", "T4")}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b fleet.ModelSet) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestUnknownPolicy(t *testing.T) {
	_, err := Canonical([]string{"fgd", "Besfit"})
	want := `unknown policy "Besfit"; want Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, pack, spread, latency, or all`
	if got := message(err); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzLists: any bytes are read or refused, and what is read can be replayed.
func FuzzLists(f *testing.F) {
	f.Add(nodeHead+"a,64000,262144,2,P100\n", podHead+"p,1000,10,1,500,\nq,1000,10,1,1000,P100|T4\n")
	f.Add("sn\n", "\"")
	f.Fuzz(func(t *testing.T, nodeText, podText string) {
		nodes, err := ReadNodes("n", strings.NewReader(nodeText))
		if err != nil {
			return
		}
		pods, err := ReadPods("p", strings.NewReader(podText))
		if err != nil || len(nodes) > 20 || len(pods) > 50 {
			return
		}
		for _, pod := range pods {
			if pod.Demand() > 0 && pod.Demand() < 100 {
				return // Thousands of arrivals.
			}
		}
		_, err = RunAll(t.Context(), &Trace{nodes, pods}, Options{Policies: policyNames(), Seeds: []uint64{1}, Inflate: 1.3})
		if err != nil {
			t.Fatal(err)
		}
	})
}
