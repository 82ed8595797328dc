package nvidia_test

import "testing"

// TestHostMemory: a GPU that uses the host's memory has the size of that, and no fault because NVML does not have it.
func TestHostMemory(t *testing.T) {
	_, adapter := machine(t, "gb10")
	got, err := adapter.Scan(t.Context())
	if err != nil || len(got.GPUs) != 1 || got.GPUs[0].MemoryBytes != 119<<30 || len(got.GPUs[0].Health.Causes) > 0 {
		t.Fatalf("got %+v, %v; want one healthy GPU with 119 GiB", got.GPUs, err)
	}
}
