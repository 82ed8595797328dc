package dcgm

// The reasons why a field has no value.
const (
	noLabels  = "Berth has no label with it; DCGM_FI_DRIVER_VERSION, UUID and modelName are labels of all series"
	noWatches = "it is the verdict of the health watches of DCGM's host engine, which NVML does not have; berth_gpu_health_state has Berth's"
	noPairs   = "dcgm-exporter computes it for each pair of GPUs, not for a GPU; berth topo shows the links"
	noWindow  = "DCGM's host engine counts it from samples of its own; DCGM_FI_DEV_CLOCKS_EVENT_REASONS and berth_gpu_throttled_seconds_total have the limits"
	noLinks   = "Berth reads the sum over all NVLinks, in the field whose name ends in _TOTAL, and no single link"
	noEngines = "Berth does not measure single engines; DCGM_FI_DEV_ENC_UTIL and DCGM_FI_DEV_DEC_UTIL have all engines of a kind"
	noDiag    = "it is a result of the diagnostics of DCGM's host engine, which NVML does not have; berth doctor NODE lists what Berth has found"
	noProf    = "it is a profiling field that needs DCGM's host engine: NVML's performance monitoring has no metric for it"
)

func without(reason string, names ...string) []Field {
	var list []Field
	for _, name := range names {
		list = append(list, Field{Name: name, Reason: reason})
	}
	return list
}

// withoutValue are the fields of dcgm-exporter's lists that have no value here.
func withoutValue() []Field {
	list := without(noLabels,
		"DCGM_FI_NVML_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_OEM_INFOROM_VER",
		"DCGM_FI_DEV_ECC_INFOROM_VER", "DCGM_FI_DEV_POWER_INFOROM_VER", "DCGM_FI_DEV_INFOROM_IMAGE_VER", "DCGM_FI_DEV_VBIOS_VERSION")
	list = append(list, without(noLinks, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0")...)
	list = append(list, without(noWindow, "DCGM_EXP_CLOCK_EVENTS_COUNT")...)
	list = append(list, without(noWatches, "DCGM_EXP_GPU_HEALTH_STATUS")...)
	return append(list, without(noPairs, "DCGM_EXP_P2P_STATUS")...)
}

// Family is a group of fields that the table does not list.
type Family struct {
	Prefix string
	Reason string
}

// Families returns the reasons for fields that the table does not list, by the beginning of their names: the first that fits counts.
func Families() []Family {
	return []Family{
		{"DCGM_FI_DEV_NVLINK_", noLinks},
		{"DCGM_FI_PROF_NVLINK_L", noLinks},
		{"DCGM_FI_PROF_NVDEC", noEngines},
		{"DCGM_FI_PROF_NVJPG", noEngines},
		{"DCGM_FI_PROF_NVOFA", noEngines},
		{"DCGM_FI_PROF_", noProf},
		{"DCGM_FI_DEV_DIAG_", noDiag},
		{"DCGM_FI_DEV_CPU_", "it is a field of the CPU, and Berth measures GPUs"},
		{"DCGM_FI_DEV_NVSWITCH_", "it is a field of an NVSwitch, and Berth measures GPUs"},
		{"DCGM_FI_DEV_VGPU_", "it is a field of a vGPU on its host, and Berth allocates whole GPUs and MIG devices"},
		{"DCGM_FI_BIND_UNBIND_EVENT", "it is an event of DCGM's host engine; the agent sees GPUs come and go by itself"},
	}
}
