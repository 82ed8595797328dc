/* A program of C that uses the simulated libnvidia-ml.so.1 (its first argument) with the declarations of NVIDIA's header. The second argument is the
 * UUID of the first GPU. It prints each expectation that fails, and "ok" at the end when none did. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

static void *library;
static int failed;

static void *need(const char *name) {
	void *found = dlsym(library, name);
	if (!found) {
		printf("no symbol %s\n", name);
		exit(1);
	}
	return found;
}

#define CALL(function, ...) (((__typeof__(&function))need(#function))(__VA_ARGS__))

static void want(const char *what, long got, long expected) {
	if (got != expected) {
		printf("%s: %ld, want %ld\n", what, got, expected);
		failed = 1;
	}
}

int main(int count, char **arguments) {
	library = dlopen(arguments[1], RTLD_NOW);
	if (count < 3 || !library) {
		printf("open: %s\n", dlerror());
		return 1;
	}
	unsigned int number = 0;
	nvmlDevice_t device = {NULL}, same = {NULL}; /* a struct of one pointer in the header of go-nvml */
	want("before init", CALL(nvmlDeviceGetCount_v2, &number), NVML_ERROR_UNINITIALIZED);
	want("init", CALL(nvmlInit_v2), NVML_SUCCESS);
	want("init, first version", CALL(nvmlInit), NVML_SUCCESS);
	want("count", CALL(nvmlDeviceGetCount_v2, &number), NVML_SUCCESS);
	want("GPUs", number, 8);
	want("count, first version", CALL(nvmlDeviceGetCount, &number), NVML_SUCCESS);
	want("null pointer", CALL(nvmlDeviceGetCount_v2, NULL), NVML_ERROR_INVALID_ARGUMENT);
	want("handle", CALL(nvmlDeviceGetHandleByIndex_v2, 0, &device), NVML_SUCCESS);
	want("no such index", CALL(nvmlDeviceGetHandleByIndex_v2, 8, &same), NVML_ERROR_INVALID_ARGUMENT);
	want("handle by UUID", CALL(nvmlDeviceGetHandleByUUID, arguments[2], &same), NVML_SUCCESS);
	want("one handle per GPU", device.handle == same.handle, 1);

	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	want("UUID", CALL(nvmlDeviceGetUUID, device, text, sizeof text), NVML_SUCCESS);
	want("the same UUID", strcmp(text, arguments[2]), 0);
	want("short buffer", CALL(nvmlDeviceGetUUID, device, text, 10), NVML_ERROR_INSUFFICIENT_SIZE);
	want("foreign handle", CALL(nvmlDeviceGetUUID, (nvmlDevice_t){(void *)&number}, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
	want("no handle", CALL(nvmlDeviceGetUUID, (nvmlDevice_t){NULL}, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);

	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	want("memory", CALL(nvmlDeviceGetMemoryInfo_v2, device, &memory), NVML_SUCCESS);
	want("version of the answer", memory.version, nvmlMemory_v2);
	want("sum of memory", memory.free + memory.used + memory.reserved, memory.total);
	memory.version = 0;
	want("struct without version", CALL(nvmlDeviceGetMemoryInfo_v2, device, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	nvmlGpuFabricInfoV_t fabric = {.version = nvmlGpuFabricInfo_v3};
	want("fabric, v3", CALL(nvmlDeviceGetGpuFabricInfoV, device, &fabric), NVML_SUCCESS);
	fabric.version = nvmlGpuFabricInfo_v3 + 1;
	want("fabric, no version", CALL(nvmlDeviceGetGpuFabricInfoV, device, &fabric), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	nvmlGpuInstanceProfileInfo_v2_t profile = {.version = nvmlGpuInstanceProfileInfo_v2};
	want("profile, v2", CALL(nvmlDeviceGetGpuInstanceProfileInfoV, device, NVML_GPU_INSTANCE_PROFILE_1_SLICE, &profile), NVML_SUCCESS);
	want("name of the profile", strcmp(profile.name, "MIG 1g.10gb"), 0);

	nvmlPciInfo_t pci;
	want("PCI", CALL(nvmlDeviceGetPciInfo_v3, device, &pci), NVML_SUCCESS);
	want("PCI by bus ID", CALL(nvmlDeviceGetHandleByPciBusId_v2, pci.busId, &same), NVML_SUCCESS);
	want("the GPU of the bus ID", device.handle == same.handle, 1);
	nvmlFieldValue_t field = {.fieldId = NVML_FI_DEV_POWER_INSTANT};
	want("fields", CALL(nvmlDeviceGetFieldValues, device, 1, &field), NVML_SUCCESS);
	want("field", field.nvmlReturn, NVML_SUCCESS);
	unsigned int processes = 0;
	want("processes", CALL(nvmlDeviceGetComputeRunningProcesses_v3, device, &processes, NULL), NVML_SUCCESS);

	nvmlEventSet_t set;
	nvmlEventData_t event;
	want("event set", CALL(nvmlEventSetCreate, &set), NVML_SUCCESS);
	want("register", CALL(nvmlDeviceRegisterEvents, device, nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
	want("no event", CALL(nvmlEventSetWait_v2, set, &event, 10), NVML_ERROR_TIMEOUT);
	want("free", CALL(nvmlEventSetFree, set), NVML_SUCCESS);
	want("freed twice", CALL(nvmlEventSetFree, set), NVML_ERROR_INVALID_ARGUMENT);

	nvmlEnableState_t state;
	want("not simulated", CALL(nvmlDeviceGetAccountingMode, device, &state), NVML_ERROR_NOT_SUPPORTED);
	want("text", strcmp(CALL(nvmlErrorString, NVML_ERROR_GPU_IS_LOST), "GPU is lost"), 0);
	want("no symbol of Go", dlsym(library, "berthCall") == NULL, 1);
	want("shutdown", CALL(nvmlShutdown), NVML_SUCCESS);
	want("shutdown", CALL(nvmlShutdown), NVML_SUCCESS);
	want("after shutdown", CALL(nvmlDeviceGetUUID, device, text, sizeof text), NVML_ERROR_UNINITIALIZED);
	if (!failed)
		puts("ok");
	return failed;
}
