package main

// examples has one example for each key of the file. A test reads them as the agent does.
func examples() map[string]string {
	return map[string]string{
		"resourceName":                  "resourceName: example.com/gpu",
		"deviceListStrategy":            "deviceListStrategy: [cdi-annotations]",
		"deviceIDStrategy":              "deviceIDStrategy: index",
		"passDeviceSpecs":               "deviceListStrategy: [envvar]\npassDeviceSpecs: true",
		"cdiAnnotationPrefix":           "deviceListStrategy: [cdi-annotations]\ncdiAnnotationPrefix: cdi.k8s.io/",
		"sharedDevicesAllocationPolicy": "sharedDevicesAllocationPolicy: packed",
		"migStrategy":                   "migStrategy: single",
		"gpus": `gpus:
- select: {model: ["NVIDIA A100*"], count: 2}
  mig: {devices: {"1g.5gb": 7}}
- select: {uuid: [GPU-8d1b2f0c-5a3e-4c8e-9a57-1f6f3a2b4c5d]}
  sharing:
    mode: mps
    replicas: 4
    mps: {pinnedMemoryMiB: 8192, activeThreadPercentage: 25, singleUser: true}
- select: {index: [3]}
  sharing: {mode: timeSlicing, replicas: 4, renameByDefault: true, failRequestsGreaterThanOne: true, timeSlice: short}
- select: {index: [4]}
  resourceName: example.com/large-gpu
- select: {index: [5]}
  mig: {layout: all-balanced}
- select: {index: [6]}
  allocation: {api: dra}
  dynamicMIG: true
- select: {index: [7]}
  exclude: true`,
		"migDevices": `migDevices:
- select: {profile: ["1g.*"], count: 3}
  sharing: {mode: timeSlicing, replicas: 2, resourceName: example.com/small-gpu}
- select: {gpu: [0], index: ["0:1"]}
  resourceName: example.com/mig
- select: {namedAsGPU: true}
  sharing: {mode: timeSlicing, replicas: 2}`,
		"migLayouts": `migLayouts:
  inference:
  - devices: [0, 1]
    mig-enabled: true
    mig-devices: {"1g.5gb": 7}
  - device-filter: "0x20B010DE"
    devices: all
    mig-enabled: false`,
		"migConfigMap":       "migConfigMap: gpu-operator/default-mig-parted-config",
		"gds":                "gds: true",
		"gdrcopy":            "gdrcopy: true",
		"mofed":              "mofed: true",
		"imex":               "imex: {channelIDs: [0], required: true}",
		"driverRoot":         "driverRoot: /run/nvidia/driver",
		"devRoot":            "devRoot: /",
		"hostRoot":           "hostRoot: /host",
		"kubeletDir":         "kubeletDir: /var/lib/k0s/kubelet",
		"cdiDir":             "cdiDir: /etc/cdi",
		"hookDir":            "hookDir: /usr/local/berth/bin",
		"containerdStateDir": "containerdStateDir: /run/k3s/containerd",
		"cgroupRoot":         "cgroupRoot: /kubelet",
		"mpsRoot":            "mpsRoot: /run/nvidia/mps",
		"stateDir":           "stateDir: /run/berth",
		"persistentDir":      "persistentDir: /var/lib/berth",
		"draDriverName":      "draDriverName: gpu.example.com",
		"pollInterval":       "pollInterval: 10s",
		"scanDeadline":       "scanDeadline: 30s",
		"healthClasses":      "healthClasses: {XID94: drain, NVLINK_DOWN: ignore}",
		"taintUnhealthy":     "taintUnhealthy: true",
		"labels":             "labels: {output: file, dir: /etc/kubernetes/node-feature-discovery/features.d, noTimestamp: true}",
		"sampleInterval":     "sampleInterval: 30s",
		"metricsListen":      "metricsListen: :9400",
		"dcgmNames":          "dcgmNames: true",
		"dcgmCounters": `dcgmCounters: |
  # The form of dcgm-exporter's lists
  DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Uncorrected memory errors.
  DCGM_FI_PROF_SM_ACTIVE,        gauge,   Ratio of cycles an SM has a warp.`,
		"dcgmCountersFile":  "dcgmCountersFile: /etc/berth/dcgm/counters.csv",
		"dcgmHostnameLabel": "dcgmNames: true\ndcgmHostnameLabel: hostname",
		"ignoredXIDs":       "ignoredXIDs: [31, 43]",
		"nodeName":          "nodeName: gpu-node-1",
		"standalone":        "standalone: true",
	}
}
