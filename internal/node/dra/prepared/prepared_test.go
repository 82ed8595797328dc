package prepared

import (
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/node/dra"
)

// written is what the kubelet 1.37.1 writes, from its own tests (pkg/kubelet/cm/dra/state/checkpointer_test.go).
const written = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example-1\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}},{\"ClaimUID\":\"4cf8db2d-06c0-7d70-1a51-e59b25b2c16c\",\"ClaimName\":\"example-2\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-2\",\"ShareID\":null,\"RequestNames\":null,\"CDIDeviceIDs\":null}]}}}]}","Checksum":2820117767}`

func wrap(data string) []byte {
	text, _ := json.Marshal(envelope{Data: &data, Checksum: crc32.ChecksumIEEE([]byte(data))})
	return text
}

func TestParse(t *testing.T) {
	version := `"apiVersion":"` + apiVersion + `"`
	tests := map[string]struct {
		data   []byte
		driver string
		want   []dra.Listed
		err    string
	}{
		"written by the kubelet": {data: []byte(written), driver: "test-driver.cdi.k8s.io", want: []dra.Listed{
			{UID: "067798be-454e-4be4-9047-1aa06aea63f7", Namespace: "default", Name: "example-1", PodUIDs: []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"},
				Devices: []dra.ListedDevice{{Pool: "worker-1", Name: "dev-1", Requests: []string{"test request"}, CDINames: []string{"example.com/example=cdi-example"}}}},
			{UID: "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", Namespace: "default", Name: "example-2", PodUIDs: []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"},
				Devices: []dra.ListedDevice{{Pool: "worker-1", Name: "dev-2"}}},
		}},
		"of another driver": {data: []byte(written), driver: "gpu.berth.dev", want: []dra.Listed{
			{UID: "067798be-454e-4be4-9047-1aa06aea63f7", Namespace: "default", Name: "example-1", PodUIDs: []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"}},
			{UID: "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", Namespace: "default", Name: "example-2", PodUIDs: []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"}},
		}},
		"not prepared":                  {data: wrap(`{` + version + `,"ClaimInfoStateList":[{"ClaimUID":"u","DriverState":{"d":{"Devices":null}}}]}`), driver: "d", want: []dra.Listed{{UID: "u"}}},
		"empty":                         {data: wrap(`{` + version + `}`), driver: "d", want: []dra.Listed{}},
		"damaged":                       {data: []byte(strings.Replace(written, "dev-1", "dev-3", 1)), driver: "test-driver.cdi.k8s.io", err: "the file is damaged"},
		"damaged, without the driver":   {data: []byte(strings.Replace(written, "dev-1", "dev-3", 1)), driver: "gpu.berth.dev"},
		"cut off":                       {data: []byte(written[:100]), driver: "test-driver.cdi.k8s.io", err: "decode the envelope"},
		"cut off before the driver":     {data: []byte(written[:100]), driver: "gpu.berth.dev", err: "decode the envelope"},
		"no content":                    {driver: "gpu.berth.dev", err: "decode the envelope"},
		"a list":                        {data: []byte(`[]`), driver: "gpu.berth.dev"},
		"a list with the driver":        {data: []byte(`["gpu.berth.dev"]`), driver: "gpu.berth.dev", err: "decode the envelope"},
		"no claims":                     {data: wrap(`["gpu.berth.dev"]`), driver: "gpu.berth.dev", err: "decode the claims"},
		"no claims, without the driver": {data: wrap(`[]`), driver: "gpu.berth.dev"},
		"older": {data: []byte(`{"version":"v1","entries":[{"ClaimUID":"u","DriverState":{"gpu.berth.dev":{}}}],"checksum":1925941526}`), driver: "gpu.berth.dev",
			err: "the file has no Data"},
		"older, without the driver": {data: []byte(`{"version":"v1","entries":[{"ClaimUID":"u","DriverState":{"nic.example.com":{}}}],"checksum":1925941526}`), driver: "gpu.berth.dev"},
		"older, without claims":     {data: []byte(`{"version":"v1","checksum":1925941526}`), driver: "gpu.berth.dev"},
		"newer": {data: wrap(`{"apiVersion":"checkpoint.dra.kubelet.k8s.io/v2","Claims":{"gpu.berth.dev":1}}`), driver: "gpu.berth.dev",
			err: `the version is "checkpoint.dra.kubelet.k8s.io/v2"`},
		"newer, without the driver":  {data: wrap(`{"apiVersion":"checkpoint.dra.kubelet.k8s.io/v2","Claims":{"nic.example.com":1}}`), driver: "gpu.berth.dev"},
		"no UID":                     {data: wrap(`{` + version + `,"ClaimInfoStateList":[{"ClaimName":"a","Namespace":"ns","DriverState":{"d":{}}}]}`), driver: "d", err: "claim ns/a has no UID"},
		"no UID, without the driver": {data: wrap(`{` + version + `,"ClaimInfoStateList":[{"ClaimName":"a","Namespace":"ns"}]}`), driver: "gpu.berth.dev"},
		"one UID twice": {data: wrap(`{` + version + `,"ClaimInfoStateList":[{"ClaimUID":"u","ClaimName":"a","DriverState":{"d":{"Devices":[{}]}}},{"ClaimUID":"u","ClaimName":"b","DriverState":{"d":{"Devices":[{}]}}}]}`),
			driver: "d", err: "have the same UID"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseState(test.data, test.driver)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("got %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestParseDevices returns the devices by their names; a file that cannot be read and does not have the mark has none.
func TestParseDevices(t *testing.T) {
	second := func(_, device string) bool { return device == "dev-2" }
	claims, err := ParseDevices([]byte(written), "dev-", second)
	if err != nil || len(claims) != 2 || len(claims[0].Devices) != 0 || len(claims[1].Devices) != 1 {
		t.Errorf("got %+v, %v", claims, err)
	}
	older := []byte(`{"version":"v1","entries":[{"ClaimUID":"u","DriverState":{"any.example.com":{}}}],"checksum":1925941526}`)
	if claims, err := ParseDevices(older, "gpu-", second); err != nil || claims != nil {
		t.Errorf("an older file without the mark: %+v, %v", claims, err)
	}
	if _, err := ParseDevices(older, "example", second); err == nil {
		t.Error("an older file with the mark is no error")
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if got, err := Read("/", dir, "d"); got != nil || err != nil {
		t.Errorf("without the file: %v %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read("/", dir, "test-driver.cdi.k8s.io"); len(got) != 2 || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if err := os.Truncate(filepath.Join(dir, FileName), maxBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read("/", dir, "d"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
}

// TestReadBelowTheHostsRoot: in a container the host's root is mounted, and links of the host are followed in it.
func TestReadBelowTheHostsRoot(t *testing.T) {
	host, own := t.TempDir(), t.TempDir()
	if _, err := Read(host, own, "d"); err == nil || !strings.Contains(err.Error(), "is not below the host's root") {
		t.Errorf("without the kubelet's directory: %v", err)
	}
	if claims, err := Read(host, filepath.Join(own, "none"), "d"); len(claims) > 0 || err != nil {
		t.Errorf("without a kubelet: %v %v", claims, err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(host, "data/kubelet"), 0o700), os.MkdirAll(filepath.Join(host, filepath.Dir(own)), 0o700)); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(os.Symlink("/data/kubelet", filepath.Join(host, own)), os.WriteFile(filepath.Join(host, "data/kubelet", FileName), []byte(written), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if claims, err := Read(host, own, "test-driver.cdi.k8s.io"); len(claims) != 2 || err != nil {
		t.Errorf("%v %v", claims, err)
	}
}

// FuzzParse: no content makes parseState panic, and what it returns has UIDs, in order.
func FuzzParse(f *testing.F) {
	f.Add(`{"apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"u","PodUIDs":{"p":{}},"DriverState":{"d":{"Devices":[{"PoolName":"p"}]}}}]}`)
	f.Add(`{"ClaimInfoStateList":null}`)
	f.Fuzz(func(t *testing.T, data string) {
		_, _ = parseState([]byte(data), "d")
		if _, err := parseState([]byte(data), "gpu.berth.dev"); err != nil && json.Valid([]byte(data)) && !strings.Contains(data, "gpu.berth.dev") {
			t.Errorf("a file without the driver: %v", err)
		}
		claims, err := parseState(wrap(data), "d")
		for i, claim := range claims {
			if err != nil || claim.UID == "" || i > 0 && claims[i-1].UID >= claim.UID {
				t.Errorf("%v %v", claims, err)
			}
		}
	})
}
