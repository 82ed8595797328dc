package problem

// seenValidation is for problems that the check of a container's GPUs finds.
const seenValidation = "berth-agent validate, and the termination message of the container that runs it"

// validationProblems are the problems that berth-agent validate finds, in a container that has requested GPUs.
func validationProblems() []Problem {
	return []Problem{
		{
			Code: "VALIDATE_NODES", Severity: Error, Area: AreaValidation, Title: "a container lacks device nodes of its GPUs",
			Meaning: "The container has fewer device nodes than the GPUs or MIG devices that it requested, or one of them cannot be opened. Programs in it do not find their GPUs.",
			Fix:     "Run berth doctor on the node: it compares the CDI spec with the device nodes and checks the container runtime. If a device node returns ENXIO or EIO, see the kernel log for the GPU's errors.",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_FOREIGN", Severity: Error, Area: AreaValidation, Title: "a container can use a GPU that it did not request",
			Meaning: "The container has the device node of a GPU that was not allocated to it, or may open one that it makes itself. Tenants of the node are not isolated from one another.",
			Fix:     "Check that the container is not privileged, that it mounts no /dev of the host, and that the NVIDIA runtime is not the default runtime (berth doctor, RUNTIME_NVIDIA_DEFAULT).",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_LIBRARY", Severity: Error, Area: AreaValidation, Title: "libcuda.so.1 cannot be loaded in a container",
			Meaning: "The driver's library is not in the container, is damaged, or lacks functions. No CUDA program starts.",
			Fix:     "Check that the driver's libcuda is installed on the node (DRIVER_LIBRARY_MISSING), that the CDI spec lists it (berth-agent inspect cdi), and that the hooks of the spec run (berth doctor).",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_VERSION", Severity: Error, Area: AreaValidation, Title: "libcuda and the kernel module are of different versions",
			Meaning: "The kernel module refuses a library of another version. The usual reason is a driver upgrade while the old kernel module is still loaded, or a CDI spec of an earlier driver.",
			Fix:     "Drain the node and reload the kernel module, or reboot the node. If the files on the node are of one version, restart the agent, which writes the CDI spec again.",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_CUDA_INIT", Severity: Error, Area: AreaValidation, Title: "CUDA does not start in a container",
			Meaning: "The call cuInit of libcuda.so.1 failed or did not return. No CUDA program on this node works.",
			Fix:     "Look the result up in NVIDIA's list of CUresult. Check that /dev/nvidia-uvm exists and the module nvidia_uvm is loaded, on a machine with NVSwitches that the fabric manager runs, and the kernel log for errors of a GPU.",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_COUNT", Severity: Error, Area: AreaValidation, Title: "CUDA shows another number of devices than requested",
			Meaning: "Programs in the container would use fewer or more GPUs than were allocated to them.",
			Fix:     "Compare the UUIDs in the result with berth gpus. A GPU that is missing is usually lost: see its health and the kernel log. Check that CUDA_VISIBLE_DEVICES is not set in the container.",
			Seen:    seenValidation,
		},
		{
			Code: "VALIDATE_COMPUTE", Severity: Error, Area: AreaValidation, Title: "a GPU does not compute, or computes a wrong result",
			Meaning: "On at least one GPU the sum of two vectors failed, was wrong, or did not end. The evidence names the GPU and the call.",
			Fix:     "Let the pods that use the GPU end, then reset it on its node: berth reset INDEX. If it fails again, have the GPU examined.",
			Seen:    seenValidation,
		},
	}
}
