// The libcuda.so.1 of a simulated machine: the driver API as far as a check of a GPU needs it. It has no GPU: it proves error paths only.
// The sum of two vectors comes from this file, and only for a kernel that was launched in CUDA's order on memory that was allocated
// on the same device and filled by copies. What is out of order returns the error that CUDA has for it.
//
// The machine is described at the end of this library's own file, since a container gets that file alone: lines whose fields are
// separated by tabs, and a last line with their length.
//
//	library	580.95.05	13000		version of this file, CUDA version
//	module	580.95.05			version of the kernel module
//	fault	CALL=RESULT | count=N | wrong | hang=CALL
//	gpu	MINOR	-	UUID	NAME	FAULT	visible while nvidiaMINOR exists
//	mig	MINOR	CAP	UUID	NAME	FAULT	visible while nvidia-caps/nvidia-capCAP exists as well
//
// As CUDA does, it shows a process one MIG device at most, and none of them beside a GPU.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
	INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
	SYSTEM_DRIVER_MISMATCH = 803, UNKNOWN = 999,
};

#define MAX_DEVICES 64
#define MAX_BLOCKS 16

struct device {
	unsigned char uuid[16];
	char name[96], fault[64];
};

// block is memory of a device. copied is how much of it was filled by copies from the host, from its begin.
struct block {
	uint64_t address;
	size_t size, copied;
	uint32_t *content;
};

struct context {
	int device, launched;
	struct block blocks[MAX_BLOCKS];
	uint64_t a, b, sum;
	uint32_t n;
	int modules;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char fault[64], dev[256] = "/dev", library[64], module[64];
static int cuda, count, initialized;
static struct device devices[MAX_DEVICES];
static uint64_t next_address = 0x7f0000000000;
static __thread struct context *current;

static const char mark[] = "berth-sim-cuda";

// field returns field number n of a line, and ends it.
static void field(const char *line, int n, char *to, size_t size) {
	for (; n > 0 && line; n--) {
		line += strcspn(line, "\t\n");
		line = *line == '\t' ? line + 1 : NULL;
	}
	size_t length = line ? strcspn(line, "\t\n") : 0;
	snprintf(to, size, "%.*s", (int)length, line ? line : "");
}

static void parse_uuid(const char *text, unsigned char *to) {
	if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0) text += 4;
	int digits = 0;
	for (; *text && digits < 32; text++) {
		int value = *text >= '0' && *text <= '9' ? *text - '0' : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10 : -1;
		if (value < 0) continue;
		to[digits / 2] = (unsigned char)(digits % 2 ? to[digits / 2] | value : value << 4);
		digits++;
	}
}

static int exists(const char *folder, const char *number) {
	char path[512];
	snprintf(path, sizeof path, "%s/%s%s", dev, folder, number);
	return access(path, F_OK) == 0;
}

static void add(const char *uuid, const char *name, const char *broken) {
	if (count == MAX_DEVICES) return;
	struct device *d = &devices[count++];
	memset(d, 0, sizeof *d);
	parse_uuid(uuid, d->uuid);
	snprintf(d->name, sizeof d->name, "%s", name);
	snprintf(d->fault, sizeof d->fault, "%s", broken);
}

// read_devices finds the devices whose nodes exist.
static void read_devices(const char *text) {
	char minor[16], cap[16], uuid[64], name[96], broken[64];
	int migs = 0;
	count = 0;
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		int mig = strncmp(line, "mig\t", 4) == 0;
		if (!mig && strncmp(line, "gpu\t", 4) != 0) continue;
		field(line, 1, minor, sizeof minor);
		field(line, 2, cap, sizeof cap);
		field(line, 3, uuid, sizeof uuid);
		field(line, 4, name, sizeof name);
		field(line, 5, broken, sizeof broken);
		if (!exists("nvidia", minor) || (mig && (count > 0 || !exists("nvidia-caps/nvidia-cap", cap)))) continue;
		if (!mig && migs) count = migs = 0;
		add(uuid, name, broken);
		migs += mig;
	}
}

// find_nodes sets where the device nodes are: in a container /dev, in the file tree of a simulated machine the one of that tree.
static void find_nodes(const char *file) {
	char root[sizeof dev - 4], known[512];
	snprintf(root, sizeof root, "%s", file);
	for (char *slash; (slash = strrchr(root, '/'));) {
		*slash = 0;
		snprintf(known, sizeof known, "%s/var/lib/berth-sim/hardware.json", root);
		if (access(known, F_OK) != 0) continue;
		snprintf(dev, sizeof dev, "%s/dev", root);
		return;
	}
}

// read_machine reads the description at the end of this file; 0 when there is none.
static int read_machine(void) {
	Dl_info self;
	if (!dladdr((void *)read_machine, &self)) return 0;
	FILE *file = fopen(self.dli_fname, "r");
	if (!file) return 0;
	char end[sizeof mark + 10], number[9], *text = NULL;
	long length = 0;
	// The last line: the mark, a tab, eight digits.
	if (fseek(file, -(long)(sizeof mark + 9), SEEK_END) == 0 && fread(end, 1, sizeof mark + 9, file) == sizeof mark + 9 &&
	    memcmp(end, mark, sizeof mark - 1) == 0) {
		memcpy(number, end + sizeof mark, 8);
		number[8] = 0;
		length = atol(number);
	}
	if (length > 0 && (text = calloc(1, (size_t)length + 1)) && fseek(file, -(length + (long)sizeof mark + 9), SEEK_END) == 0 &&
	    fread(text, 1, (size_t)length, file) != (size_t)length) length = 0;
	fclose(file);
	if (!text || length == 0) return 0;
	for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		char value[16];
		if (strncmp(line, "library\t", 8) == 0) {
			field(line, 1, library, sizeof library);
			field(line, 2, value, sizeof value);
			cuda = atoi(value);
		} else if (strncmp(line, "module\t", 7) == 0) {
			field(line, 1, module, sizeof module);
		} else if (strncmp(line, "fault\t", 6) == 0) {
			field(line, 1, fault, sizeof fault);
		}
	}
	find_nodes(self.dli_fname);
	read_devices(text);
	free(text);
	return 1;
}

// fails is what a fault makes of a call: it hangs, or returns the result.
static CUresult fails(const char *broken, const char *call) {
	size_t length = strlen(call);
	if (strncmp(broken, "hang=", 5) == 0 && strcmp(broken + 5, call) == 0) {
		for (;;) pause();
	}
	if (strncmp(broken, call, length) == 0 && broken[length] == '=') return atoi(broken + length + 1);
	return SUCCESS;
}

#define ENTER(call)                                      \
	do {                                             \
		CUresult failed = fails(fault, call);    \
		if (failed != SUCCESS) return failed;    \
	} while (0)
#define NEEDS_INIT                                       \
	do {                                             \
		if (!initialized) return NOT_INITIALIZED; \
	} while (0)
#define NEEDS_CONTEXT(call)                                                      \
	do {                                                                     \
		NEEDS_INIT;                                                      \
		ENTER(call);                                                     \
		if (!current) return INVALID_CONTEXT;                            \
		CUresult broken = fails(devices[current->device].fault, call);   \
		if (broken != SUCCESS) return broken;                            \
	} while (0)

CUresult cuInit(unsigned flags) {
	if (flags != 0) return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	int known = initialized || read_machine();
	pthread_mutex_unlock(&lock);
	if (!known) return UNKNOWN;
	ENTER("cuInit");
	if (strcmp(library, module) != 0) return SYSTEM_DRIVER_MISMATCH;
	if (count == 0) return NO_DEVICE;
	initialized = 1;
	return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
	NEEDS_INIT;
	ENTER("cuDriverGetVersion");
	*version = cuda;
	return SUCCESS;
}

CUresult cuDeviceGetCount(int *number) {
	NEEDS_INIT;
	ENTER("cuDeviceGetCount");
	*number = count + (strncmp(fault, "count=", 6) == 0 ? atoi(fault + 6) : 0);
	if (*number < 0) *number = 0;
	return SUCCESS;
}

CUresult cuDeviceGet(int *device, int ordinal) {
	NEEDS_INIT;
	ENTER("cuDeviceGet");
	if (ordinal < 0 || ordinal >= count) return INVALID_DEVICE;
	*device = ordinal;
	return fails(devices[ordinal].fault, "cuDeviceGet");
}

CUresult cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
	NEEDS_INIT;
	ENTER("cuDeviceGetUuid_v2");
	if (device < 0 || device >= count) return INVALID_DEVICE;
	memcpy(uuid, devices[device].uuid, 16);
	return fails(devices[device].fault, "cuDeviceGetUuid_v2");
}

CUresult cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceGetName(char *name, int length, int device) {
	NEEDS_INIT;
	ENTER("cuDeviceGetName");
	if (device < 0 || device >= count || length <= 0) return device < 0 || device >= count ? INVALID_DEVICE : INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", devices[device].name);
	return fails(devices[device].fault, "cuDeviceGetName");
}

CUresult cuCtxCreate_v2(void **context, unsigned flags, int device) {
	(void)flags;
	NEEDS_INIT;
	ENTER("cuCtxCreate_v2");
	if (device < 0 || device >= count) return INVALID_DEVICE;
	CUresult broken = fails(devices[device].fault, "cuCtxCreate_v2");
	if (broken != SUCCESS) return broken;
	struct context *made = calloc(1, sizeof *made);
	if (!made) return OUT_OF_MEMORY;
	made->device = device;
	*context = current = made;
	return SUCCESS;
}

static struct block *find(uint64_t address, size_t size) {
	for (int i = 0; i < MAX_BLOCKS; i++) {
		struct block *b = &current->blocks[i];
		if (b->content && b->address == address && size <= b->size) return b;
	}
	return NULL;
}

CUresult cuMemAlloc_v2(uint64_t *address, size_t size) {
	NEEDS_CONTEXT("cuMemAlloc_v2");
	if (size == 0) return INVALID_VALUE;
	for (int i = 0; i < MAX_BLOCKS; i++) {
		struct block *b = &current->blocks[i];
		if (b->content) continue;
		if (!(b->content = malloc(size))) return OUT_OF_MEMORY;
		memset(b->content, 0xa5, size); // New memory has no particular content.
		pthread_mutex_lock(&lock);
		b->address = next_address;
		next_address += (size + 0x1fffff) & ~(size_t)0x1fffff;
		pthread_mutex_unlock(&lock);
		b->size = size;
		b->copied = 0;
		*address = b->address;
		return SUCCESS;
	}
	return OUT_OF_MEMORY;
}

CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
	NEEDS_CONTEXT("cuMemcpyHtoD_v2");
	struct block *b = find(to, size);
	if (!b) return INVALID_VALUE;
	memcpy(b->content, from, size);
	if (size > b->copied) b->copied = size;
	return SUCCESS;
}

// A module is a copy of its text, so that a function is found only in one that is loaded.
struct module {
	struct context *of;
	char *text;
};

CUresult cuModuleLoadData(struct module **loaded, const char *image) {
	NEEDS_CONTEXT("cuModuleLoadData");
	const char *version = image ? strstr(image, ".version ") : NULL;
	if (!version || !strstr(image, ".target sm_") || !strstr(image, ".entry ")) return INVALID_IMAGE;
	struct module *made = calloc(1, sizeof *made);
	if (!made || !(made->text = strdup(image))) {
		free(made);
		return OUT_OF_MEMORY;
	}
	made->of = current;
	current->modules++;
	*loaded = made;
	return SUCCESS;
}

CUresult cuModuleGetFunction(struct module **function, struct module *loaded, const char *name) {
	NEEDS_CONTEXT("cuModuleGetFunction");
	if (!loaded || loaded->of != current) return INVALID_HANDLE;
	char entry[128];
	snprintf(entry, sizeof entry, ".entry %s(", name);
	if (!strstr(loaded->text, entry)) return NOT_FOUND;
	*function = loaded;
	return SUCCESS;
}

CUresult cuLaunchKernel(struct module *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
	unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra) {
	(void)shared, (void)stream;
	NEEDS_CONTEXT("cuLaunchKernel");
	if (!function || function->of != current) return INVALID_HANDLE;
	if (!parameters || extra || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || block_x > 1024) return INVALID_VALUE;
	memcpy(&current->a, parameters[0], 8);
	memcpy(&current->b, parameters[1], 8);
	memcpy(&current->sum, parameters[2], 8);
	memcpy(&current->n, parameters[3], 4);
	if ((uint64_t)grid_x * block_x < current->n) return INVALID_VALUE;
	current->launched = 1;
	return SUCCESS;
}

// run adds the two vectors of the launched kernel. Like a GPU it reports an error of the kernel only now.
static CUresult run(void) {
	if (!current->launched) return SUCCESS;
	current->launched = 0;
	size_t size = (size_t)current->n * 4;
	struct block *a = find(current->a, size), *b = find(current->b, size), *sum = find(current->sum, size);
	if (!a || !b || !sum || a == b || a == sum || b == sum) return ILLEGAL_ADDRESS;
	if (a->copied < size || b->copied < size) return LAUNCH_FAILED;
	for (uint32_t i = 0; i < current->n; i++) sum->content[i] = a->content[i] + b->content[i];
	if (strcmp(fault, "wrong") == 0 || strcmp(devices[current->device].fault, "wrong") == 0) sum->content[current->n / 2] ^= 1;
	return SUCCESS;
}

CUresult cuCtxSynchronize(void) {
	NEEDS_CONTEXT("cuCtxSynchronize");
	return run();
}

CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
	NEEDS_CONTEXT("cuMemcpyDtoH_v2");
	CUresult failed = run();
	struct block *b = find(from, size);
	if (failed != SUCCESS || !b) return failed != SUCCESS ? failed : INVALID_VALUE;
	memcpy(to, b->content, size);
	return SUCCESS;
}

CUresult cuMemFree_v2(uint64_t address) {
	NEEDS_CONTEXT("cuMemFree_v2");
	struct block *b = find(address, 0);
	if (!b) return INVALID_VALUE;
	free(b->content);
	memset(b, 0, sizeof *b);
	return SUCCESS;
}

CUresult cuModuleUnload(struct module *loaded) {
	NEEDS_CONTEXT("cuModuleUnload");
	if (!loaded || loaded->of != current) return INVALID_HANDLE;
	current->modules--;
	free(loaded->text);
	free(loaded);
	return SUCCESS;
}

CUresult cuCtxDestroy_v2(struct context *context) {
	NEEDS_CONTEXT("cuCtxDestroy_v2");
	if (context != current) return INVALID_CONTEXT;
	for (int i = 0; i < MAX_BLOCKS; i++) free(current->blocks[i].content);
	free(current);
	current = NULL;
	return SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
	static const struct {
		CUresult result;
		const char *name;
	} names[] = {
		{SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		{INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
		{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
		{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
		{SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {UNKNOWN, "CUDA_ERROR_UNKNOWN"},
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (names[i].result == result) {
			*name = names[i].name;
			return SUCCESS;
		}
	}
	return INVALID_VALUE;
}
