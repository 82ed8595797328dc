package problem

// gpuProblems are the problems of one GPU.
func gpuProblems() []Problem {
	return []Problem{
		{
			Code: XIDPattern, Severity: Error, Area: AreaGPU, Title: "the driver reported XIDn",
			Meaning: "The NVIDIA driver reports what goes wrong on a GPU as an XID with a number. What that means for the GPU depends on the number. Where it takes the GPU out of service, it is not advertised until there is proof of repair; pods that hold it keep it.",
			Fix:     "What to do depends on the number: see the table of XIDs. health.md says what proves a repair: a reset, a recovery action that the driver reported and then withdrew, or a period in which all scans found the GPU in order.",
			Seen:    seenGPU,
		},
		{
			Code: "ECC_DOUBLE_BIT", Severity: Error, Area: AreaGPU, Title: "uncorrectable memory errors since the last reset",
			Meaning: "The GPU counted memory errors that its ECC could detect and not repair, so results may be wrong, and the driver may have ended programs.",
			Fix:     "If the GPU is Degraded (A100, H100 and later contain such errors): nothing now, the next reset repairs it. Otherwise let its pods end and reset it on its node: berth reset INDEX. Replace the GPU if the errors return.",
			Seen:    seenGPU,
		},
		{
			Code: "ECC_SRAM_UNCORRECTABLE", Severity: Error, Area: AreaGPU, Title: "uncorrectable errors outside the GPU's DRAM since the last reset",
			Meaning: "The GPU counted uncorrectable errors in its caches or registers, or errors whose place the driver does not report. Such errors are not contained: they can affect every program on the GPU.",
			Fix:     "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX. Replace the GPU if the errors return.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_LOST", Severity: Error, Area: AreaGPU, Title: "a GPU does not answer",
			Meaning: "The GPU is still on the PCI bus, but the driver can no longer reach it. The other GPUs continue to work.",
			Fix:     "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX. If it still does not answer, drain and reboot the node. If this happens again, check the GPU's power supply and seating.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_NOT_COUNTED", Severity: Error, Area: AreaGPU, Title: "the driver lists a GPU that NVML does not count",
			Meaning: "/proc/driver/nvidia/gpus lists the GPU, but NVML does not report it to the agent. The usual reason is that the agent may not open the GPU's device node.",
			Fix:     "Check that /dev/nvidiaN exists on the host and that the agent's container may open it (privileged, or the device passed).",
			Seen:    seenNode,
		},
		{
			Code: "GPU_LEFT_OUT", Severity: Error, Area: AreaGPU, Title: "a GPU has not an identity of its own",
			Meaning: "The driver reports for the GPU no UUID or one that is none, or the UUID, the PCI address or the device node of another GPU. Neither of the two is advertised or shown, since a pod that is given the one could get the other. The other GPUs of the node are not affected.",
			Fix:     "See the message, and compare nvidia-smi -L, the files in /proc/driver/nvidia/gpus and the device nodes in /dev. Reboot the node, or have the GPU replaced.",
			Seen:    seenNode,
		},
		{
			Code: "GPU_READ_FAILED", Severity: Warning, Area: AreaGPU, Title: "a value of a GPU could not be read",
			Meaning: "A call to the driver returned an error that may be temporary, such as a timeout. The value of an earlier scan is used, and until a call succeeds no fault counts as repaired. After three such scans in a row the problem is GPU_UNREADABLE.",
			Fix:     "Nothing, if it ends by itself. Otherwise see the error in the message and the kernel log (dmesg).",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_RESET_REQUIRED", Severity: Error, Area: AreaGPU, Title: "a GPU needs a reset",
			Meaning: "The driver refuses work on the GPU until it is reset. On a GPU with MIG this affects all of its MIG devices.",
			Fix:     "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "GPU_UNIDENTIFIED", Severity: Error, Area: AreaGPU, Title: "a GPU does not answer and its UUID is not known",
			Meaning: "The GPU did not answer when Berth first saw it, so its UUID is not known and it is not advertised.",
			Fix:     "Reset the GPU on its node (nvidia-smi --gpu-reset, as health.md describes), or reboot the node.",
			Seen:    seenNode,
		},
		{
			Code: "GPU_UNREADABLE", Severity: Error, Area: AreaGPU, Title: "a GPU cannot be read",
			Meaning: "The driver counts the GPU, but queries about it return errors: in three scans in a row, or in a scan without an earlier value to use (the first scan, and the first one after a change of its MIG devices, a reset or a reload of the driver). The GPU is not allocated to new pods; pods that hold its devices keep them.",
			Fix:     "See the error in the message. Reset the GPU on its node (berth reset INDEX), or reboot the node.",
			Seen:    seenGPU,
		},
		{
			Code: "HARDWARE_TIMEOUT", Severity: Error, Area: AreaGPU, Title: "the driver of a vendor hangs",
			Meaning: "A call into the driver of a vendor without an entry of its own for this has not returned within its deadline. What is shown of the GPU, or of all GPUs of that vendor, is from before, and it is not advertised; the GPUs of other vendors are not affected. The kubelet and the metrics are still served.",
			Fix:     "Look for messages of the driver in the kernel log and for programs in state D. If the call does not return, drain and reboot the node.",
			Seen:    "the health of the GPU that was asked, or status.problems of GPUNode",
		},
		{
			Code: "NVML_TIMEOUT", Severity: Error, Area: AreaGPU, Title: "the driver hangs",
			Meaning: "A call to the driver did not return within its deadline. If the call is about one GPU, that GPU is shown as last scanned and is not allocated to new pods, and the other GPUs are scanned as usual. If it is about the whole node, all GPUs are shown as last scanned. The kubelet and the metrics are still served.",
			Fix:     "Look for XIDs in the kernel log (dmesg | grep Xid) and for processes in state D (ps -eo pid,stat,comm). If the call does not return, drain and reboot the node.",
			Seen:    "the health of the GPU that was asked, or status.problems of GPUNode",
		},
		{
			Code: "OFF_BUS", Severity: Error, Area: AreaGPU, Title: "a GPU has fallen off the PCI bus",
			Meaning: "The GPU's PCI configuration space reads as all ones: the GPU no longer answers on the PCI bus. A GPU reset does not help.",
			Fix:     "Drain and reboot the node; if the GPU is still missing, power the node off and on. If this happens again, check power, cabling and seating.",
			Seen:    seenGPU,
		},
		{
			Code: "RECOVERY_ACTION", Severity: Error, Area: AreaGPU, Title: "the driver requests a recovery action",
			Meaning: "The driver reports which action repairs the GPU (NVML field 230): a reset, a drain and a reset, or a reboot.",
			Fix:     "Let the pods that use the GPU end, then do what the field recovery of its health in the GPUNode says: berth reset INDEX for a reset, a drain and reboot of the node for a reboot.",
			Seen:    seenGPU,
		},
		{
			Code: "ROW_REMAP_FAILURE", Severity: Error, Area: AreaGPU, Title: "a defective memory row could not be replaced",
			Meaning: "The GPU has no spare memory row left for a defective one, so memory errors will return.",
			Fix:     "Replace the GPU.",
			Seen:    seenGPU,
		},
		{
			Code: "ROW_REMAP_PENDING", Severity: Error, Area: AreaGPU, Title: "a defective memory row waits to be replaced",
			Meaning: "The GPU found a defective memory row and replaces it with a spare one at the next reset.",
			Fix:     "If the GPU is Degraded (A100, H100 and later contain memory errors): nothing now, the next reset repairs it. Otherwise let its pods end and reset it on its node: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "FABRIC_ERROR", Severity: Error, Area: AreaGPU, Title: "a GPU could not join its NVLink fabric",
			Meaning: "The GPU could not register with the NVSwitches, so programs that use several GPUs fail.",
			Fix:     "See the log of the Fabric Manager (journalctl -u nvidia-fabricmanager), and check that its version is that of the driver. Then reset all GPUs of the node together, or reboot the node.",
			Seen:    seenGPU,
		},
		{
			Code: "FABRIC_NOT_READY", Severity: Error, Area: AreaGPU, Title: "a GPU has not joined its NVLink fabric yet",
			Meaning: "CUDA programs cannot start on such a GPU. This is normal for a short time after a boot, and lasts as long as no Fabric Manager runs.",
			Fix:     "Wait some minutes after a boot. Otherwise start the Fabric Manager (systemctl start nvidia-fabricmanager); on GB200 and later, check nvidia-imex and the rack's NMX controller.",
			Seen:    seenGPU,
		},
		{
			Code: "NVLINK_DOWN", Severity: Warning, Area: AreaGPU, Title: "an NVLink of a GPU is down",
			Meaning: "The GPU works, but its connection to other GPUs is slower or goes over PCIe.",
			Fix:     "Let the pods that use the GPUs at both ends of the link end, then reset them: berth reset INDEX. If the link stays down, have the bridge, board or cable examined.",
			Seen:    seenGPU,
		},
		{
			Code: "NVLINK_ERRORS", Severity: Warning, Area: AreaGPU, Title: "an NVLink of a GPU counts many errors",
			Meaning: "Transfers are repeated, so programs that use several GPUs are slower. Often the link fails later.",
			Fix:     "Have the bridge, board or cable examined.",
			Seen:    seenGPU,
		},
		{
			Code: "RETIRED_PAGES_PENDING", Severity: Error, Area: AreaGPU, Title: "defective memory pages wait to be retired",
			Meaning: "The GPU found defective memory pages, and stops using them at the next reset.",
			Fix:     "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX.",
			Seen:    seenGPU,
		},
		{
			Code: "TEMPERATURE_SHUTDOWN", Severity: Error, Area: AreaGPU, Title: "a GPU is near the temperature at which it switches itself off",
			Meaning: "At its limit the GPU switches itself off, and the programs that use it are lost.",
			Fix:     "Check the cooling of the node: fans, airflow and inlet temperature. The GPU is advertised as healthy again when it is cooler.",
			Seen:    seenGPU,
		},
		{
			Code: "TEMPERATURE_SLOWDOWN", Severity: Warning, Area: AreaGPU, Title: "a GPU is hotter than its slowdown temperature",
			Meaning: "The GPU reduces its clocks to protect itself.",
			Fix:     "Check the cooling of the node: fans, airflow and inlet temperature.",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_HW_SLOWDOWN", Severity: Warning, Area: AreaGPU, Title: "the hardware slows a GPU down",
			Meaning: "The board reduced the GPU's clocks to half or less because of its power or temperature.",
			Fix:     "Check the power supply and the cooling of the GPU.",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_POWER_BRAKE", Severity: Warning, Area: AreaGPU, Title: "the node's power supply throttles a GPU",
			Meaning: "The machine has ordered its GPUs to use less power. The usual reason is a failed power supply.",
			Fix:     "Check the power supplies and the power cap in the machine's management controller (BMC).",
			Seen:    seenGPU,
		},
		{
			Code: "THROTTLE_THERMAL", Severity: Warning, Area: AreaGPU, Title: "a GPU is slowed down by heat",
			Meaning: "The GPU reduces its clocks to protect itself.",
			Fix:     "Check the cooling of the node: fans, airflow and inlet temperature.",
			Seen:    seenGPU,
		},
		{
			Code: "VENDOR_WITHDRAWN", Severity: Error, Area: AreaGPU, Title: "the agent has stopped using a vendor's driver",
			Meaning: "The agent's code for the GPUs of that vendor failed with a panic and is no longer called. Its GPUs are not allocated to new pods; pods that hold them keep them. The GPUs of other vendors are not affected.",
			Fix:     "Report the panic as a bug, with its stack from the agent's log. Restart the agent's pod to use the GPUs again.",
			Seen:    "the health of the vendor's GPUs, and status.problems of GPUNode",
		},
	}
}
