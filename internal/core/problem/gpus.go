package problem

// gpuProblems are the problems of one GPU.
func gpuProblems() []Problem {
	return []Problem{
		{
			Code: XIDPattern, Severity: Error, Area: AreaGPU, Title: "the driver reported XIDn",
			Meaning: "The NVIDIA driver reports what goes wrong on a GPU as an XID with a number. What that means for the GPU depends on the number. Where it takes the GPU out of service, it is not advertised until there is proof of repair; pods that hold it keep it.",
			Fix:     "What to do depends on the number: see the table of XIDs. health.md says what proves a repair: a reset, a recovery action that the driver named and took back, or a hold-off with clean scans.",
			Seen:    seenGPU,
		},
		{
			Code: "ECC_DOUBLE_BIT", Severity: Error, Area: AreaGPU, Title: "uncorrectable memory errors since the last reset",
			Meaning: "The GPU counted memory errors that its ECC could detect and not repair, so results may be wrong and programs may have been ended.",
			Fix:     "A GPU that contains such errors (A100, H100 and later) works on while the driver asks for nothing, or until its pods have ended. Otherwise drain it and reset it: berth reset INDEX. Replace it if the errors return.",
			Seen:    seenGPU,
		},
		{
			Code: "ECC_SRAM_UNCORRECTABLE", Severity: Error, Area: AreaGPU, Title: "uncorrectable errors outside the GPU's DRAM since the last reset",
			Meaning: "The GPU counted uncorrectable errors in its caches or registers, or errors that the driver does not say to be in DRAM. They are not contained.",
			Fix:     "Drain the GPU and reset it: berth reset INDEX. Replace it if the errors return.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_LOST", Severity: Error, Area: AreaGPU, Title: "a GPU does not answer",
			Meaning: "The machine still has the GPU, and the driver does not reach it any more. The other GPUs go on working.",
			Fix:     "Drain the node, reset the GPU, and reboot the node if that does not help. Check power and seating if it happens again.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_NOT_COUNTED", Severity: Error, Area: AreaGPU, Title: "the driver lists a GPU that NVML does not count",
			Meaning: "/proc/driver/nvidia/gpus has the GPU, but a program that asks NVML does not see it: most often the agent may not open the GPU's device node.",
			Fix:     "Check that /dev/nvidiaN exists on the host and that the agent's container may open it (privileged, or the device passed).",
			Seen:    seenNode,
		},
		{
			Code: "GPU_READ_FAILED", Severity: Warning, Area: AreaGPU, Title: "a value of a GPU could not be read",
			Meaning: "A call into the driver came back with an error that may pass, such as a timeout. What an earlier scan found stays in force, and nothing is taken for repaired meanwhile. After three scans in a row the GPU is unreadable.",
			Fix:     "Nothing, if it goes away by itself. Otherwise see the error in the message and the kernel log.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_RESET_REQUIRED", Severity: Error, Area: AreaGPU, Title: "a GPU needs a reset",
			Meaning: "The driver refuses work on the GPU until it was reset. On a GPU with MIG this concerns all of its MIG devices.",
			Fix:     "Drain the GPU and reset it on its node: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_UNIDENTIFIED", Severity: Error, Area: AreaGPU, Title: "a GPU does not answer and its UUID is not known",
			Meaning: "The GPU did not answer when Berth first saw it, so its UUID is not known and it is not advertised.",
			Fix:     "Reset the GPU or reboot the node.",
			Seen:    seenNode,
		},
		{
			Code: "GPU_UNREADABLE", Severity: Error, Area: AreaGPU, Title: "a GPU cannot be read",
			Meaning: "The driver counts the GPU, and a query about it returns an error: in three scans in a row, or when nothing known can stand for the answer, as in the first scan, after a change of its MIG devices, a reset or another start of the driver. It is not allocated to new pods; pods that hold its devices keep them.",
			Fix:     "See the error in the message; reset the GPU, or reboot the node.",
			Seen:    seenGPU,
		},
		{
			Code: "NVML_TIMEOUT", Severity: Error, Area: AreaGPU, Title: "the driver hangs",
			Meaning: "A call into the driver has not returned within its deadline. A GPU that it is about is shown as it was last seen and not advertised, and the other GPUs are scanned as usual; after a call about the whole node, what is shown of all GPUs is from before. The kubelet and the metrics are still served.",
			Fix:     "Look for XIDs in the kernel log and for programs in state D. If the call does not return, drain and reboot the node.",
			Seen:    "the health of the GPU that was asked, or status.problems of GPUNode",
		},
		{
			Code: "OFF_BUS", Severity: Error, Area: AreaGPU, Title: "a GPU has fallen off the PCI bus",
			Meaning: "The GPU's PCI configuration reads as all ones: the bus does not reach it. A GPU reset cannot help.",
			Fix:     "Drain and reboot the node; power it off and on if the GPU stays away. Check power, cabling and seating if it happens again.",
			Seen:    seenGPU,
		},
		{
			Code: "RECOVERY_ACTION", Severity: Error, Area: AreaGPU, Title: "the driver asks for a recovery action",
			Meaning: "The driver reports what would repair the GPU (NVML field 230): a reset, a drain, a reboot.",
			Fix:     "Drain the GPU and do what the recovery field of its health says.",
			Seen:    seenGPU,
		},
		{
			Code: "ROW_REMAP_FAILURE", Severity: Error, Area: AreaGPU, Title: "a defective memory row could not be replaced",
			Meaning: "The GPU has no spare rows left for a defect. It will keep producing memory errors.",
			Fix:     "Replace the GPU.",
			Seen:    seenGPU,
		},
		{
			Code: "ROW_REMAP_PENDING", Severity: Error, Area: AreaGPU, Title: "a defective memory row waits to be replaced",
			Meaning: "The GPU found a defective row and takes a spare one at the next reset.",
			Fix:     "A GPU that contains memory errors (A100, H100 and later) works on while the driver asks for nothing. Otherwise drain it and reset it: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "FABRIC_ERROR", Severity: Error, Area: AreaGPU, Title: "a GPU could not join its NVLink fabric",
			Meaning: "The registration of the GPU with the NVSwitches ended with an error, so programs that use several GPUs fail.",
			Fix:     "See the Fabric Manager's log (nvidia-fabricmanager) and its version, which must be the driver's; reset the GPUs of the node together.",
			Seen:    seenGPU,
		},
		{
			Code: "FABRIC_NOT_READY", Severity: Error, Area: AreaGPU, Title: "a GPU has not joined its NVLink fabric yet",
			Meaning: "CUDA does not start on such a GPU. That is normal for a while after a boot, and permanent without a Fabric Manager.",
			Fix:     "Start nvidia-fabricmanager (on GB200 and later nvidia-imex and the rack's NMX), or wait until it has finished.",
			Seen:    seenGPU,
		},
		{
			Code: "NVLINK_DOWN", Severity: Warning, Area: AreaGPU, Title: "an NVLink of a GPU is down",
			Meaning: "The GPU works, and reaches other GPUs more slowly or over PCIe.",
			Fix:     "Drain and reset the GPUs at both ends of the link. Have the bridge, board or cable examined if it stays down.",
			Seen:    seenGPU,
		},
		{
			Code: "NVLINK_ERRORS", Severity: Warning, Area: AreaGPU, Title: "an NVLink of a GPU counts many errors",
			Meaning: "Transfers are repeated, so programs that use several GPUs are slowed down; a link often goes down after that.",
			Fix:     "Have the bridge, board or cable examined.",
			Seen:    seenGPU,
		},
		{
			Code: "RETIRED_PAGES_PENDING", Severity: Error, Area: AreaGPU, Title: "defective memory pages wait to be retired",
			Meaning: "The GPU knows of pages that it must not use, and leaves them out from the next reset on.",
			Fix:     "Drain the GPU and reset it on its node: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "TEMPERATURE_SHUTDOWN", Severity: Error, Area: AreaGPU, Title: "a GPU is near the temperature at which it switches itself off",
			Meaning: "At its limit the GPU falls off the bus, and what runs on it is lost.",
			Fix:     "Cool the GPU: check fans, airflow and the inlet temperature. It is advertised as healthy again when it is cooler.",
			Seen:    seenGPU,
		},
		{
			Code: "TEMPERATURE_SLOWDOWN", Severity: Warning, Area: AreaGPU, Title: "a GPU is hotter than its slowdown temperature",
			Meaning: "The GPU reduces its clocks to protect itself.",
			Fix:     "Cool the GPU: check fans, airflow and the inlet temperature.",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_HW_SLOWDOWN", Severity: Warning, Area: AreaGPU, Title: "the hardware slows a GPU down",
			Meaning: "Power or temperature made the board halve its clocks or worse.",
			Fix:     "Check the power supply and the cooling of the GPU.",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_POWER_BRAKE", Severity: Warning, Area: AreaGPU, Title: "the node's power supply throttles a GPU",
			Meaning: "The machine orders its GPUs to take less power, most often because a power supply failed.",
			Fix:     "See the machine's management controller: power supplies and power cap.",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_THERMAL", Severity: Warning, Area: AreaGPU, Title: "a GPU is slowed down by heat",
			Meaning: "The GPU reduces its clocks to protect itself.",
			Fix:     "Cool the GPU: check fans, airflow and the inlet temperature.",
			Seen:    seenGPU,
		},
		{
			Code: "VENDOR_WITHDRAWN", Severity: Error, Area: AreaGPU, Title: "the agent has stopped using a vendor's driver",
			Meaning: "The agent's code for the GPUs of that vendor failed with a panic. It is not called any more, and its GPUs are not allocated to new pods; pods that hold them keep them. The GPUs of other vendors are not affected.",
			Fix:     "Restart the agent's pod, and report the panic: the agent's log has it with its stack.",
			Seen:    "the health of the vendor's GPUs, and status.problems of GPUNode",
		},
	}
}
