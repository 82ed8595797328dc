#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 256

struct berth_cuda {
	char *file;
	_Atomic(const char *) calling;
	int (*init)(unsigned);
	int (*version)(int *);
	int (*count)(int *);
	int (*device)(int *, int);
	int (*uuid)(unsigned char *, int);
	int (*name)(char *, int, int);
	int (*context)(void **, unsigned, int);
	int (*alloc)(uint64_t *, size_t);
	int (*copy_in)(uint64_t, const void *, size_t);
	int (*load)(void **, const void *);
	int (*function)(void **, void *, const char *);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*synchronize)(void);
	int (*copy_out)(void *, uint64_t, size_t);
	int (*release)(uint64_t);
	int (*unload)(void *);
	int (*destroy)(void *);
	int (*error_name)(int, const char **);
};

static char *text(const char *format, const char *value) {
	char *made = NULL;
	return asprintf(&made, format, value) < 0 ? NULL : made;
}

berth_cuda *berth_cuda_open(const char *file, char **reason) {
	// The library stays mapped: it starts threads, and cannot be unloaded.
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle) {
		*reason = text("%s", dlerror());
		return NULL;
	}
	berth_cuda *lib = calloc(1, sizeof *lib);
	const struct {
		const char *name;
		void *field;
		int optional;
	} calls[] = {
		{"cuInit", &lib->init, 0}, {"cuDriverGetVersion", &lib->version, 0}, {"cuDeviceGetCount", &lib->count, 0}, {"cuDeviceGet", &lib->device, 0},
		// The second version, of CUDA 11.4, knows MIG devices; an earlier driver has the first only.
		{"cuDeviceGetUuid", &lib->uuid, 1}, {"cuDeviceGetUuid_v2", &lib->uuid, 1},
		{"cuDeviceGetName", &lib->name, 0}, {"cuCtxCreate_v2", &lib->context, 0}, {"cuMemAlloc_v2", &lib->alloc, 0},
		{"cuMemcpyHtoD_v2", &lib->copy_in, 0}, {"cuModuleLoadData", &lib->load, 0}, {"cuModuleGetFunction", &lib->function, 0},
		{"cuLaunchKernel", &lib->launch, 0}, {"cuCtxSynchronize", &lib->synchronize, 0}, {"cuMemcpyDtoH_v2", &lib->copy_out, 0},
		{"cuMemFree_v2", &lib->release, 0}, {"cuModuleUnload", &lib->unload, 0}, {"cuCtxDestroy_v2", &lib->destroy, 0},
		{"cuGetErrorName", &lib->error_name, 1},
	};
	for (size_t i = 0; lib && i < sizeof calls / sizeof *calls; i++) {
		void *found = dlsym(handle, calls[i].name);
		if (!found && !calls[i].optional) {
			*reason = text("it has no function %s", calls[i].name);
			free(lib);
			return NULL;
		}
		if (found) memcpy(calls[i].field, &found, sizeof found);
	}
	if (lib && !lib->uuid) {
		*reason = text("it has no function %s", "cuDeviceGetUuid");
		free(lib);
		return NULL;
	}
	if (!lib) return NULL;
	Dl_info info;
	lib->file = strdup(dladdr((void *)lib->init, &info) && info.dli_fname ? info.dli_fname : file);
	atomic_store(&lib->calling, "");
	return lib;
}

const char *berth_cuda_file(const berth_cuda *lib) { return lib->file; }

const char *berth_cuda_calling(berth_cuda *lib) { return atomic_load(&lib->calling); }

// CALL makes a call and keeps its name while it runs.
#define CALL(call_name, expression)                   \
	(atomic_store(&lib->calling, (call_name)),    \
	 result = (expression),                       \
	 atomic_store(&lib->calling, ""),             \
	 result)

// TRY ends with the first call that fails.
#define TRY(call_name, expression)                            \
	do {                                                  \
		if (CALL(call_name, expression) != 0) {       \
			*call = (call_name);                  \
			goto done;                            \
		}                                             \
	} while (0)

// ALWAYS makes a call that frees something; its error counts when there is no earlier one.
#define ALWAYS(call_name, expression)                                  \
	do {                                                           \
		int earlier = result;                                  \
		if (CALL(call_name, expression) != 0 && earlier == 0) { \
			*call = (call_name);                           \
		} else {                                               \
			result = earlier;                              \
		}                                                      \
	} while (0)

int berth_cuda_init(berth_cuda *lib) {
	int result;
	return CALL("cuInit", lib->init(0));
}

int berth_cuda_version(berth_cuda *lib, int *version) {
	int result;
	return CALL("cuDriverGetVersion", lib->version(version));
}

int berth_cuda_count(berth_cuda *lib, int *count) {
	int result;
	return CALL("cuDeviceGetCount", lib->count(count));
}

int berth_cuda_device(berth_cuda *lib, int ordinal, unsigned char *uuid, char *name, int length, const char **call) {
	int result, device;
	TRY("cuDeviceGet", lib->device(&device, ordinal));
	TRY("cuDeviceGetUuid", lib->uuid(uuid, device));
	TRY("cuDeviceGetName", lib->name(name, length, device));
done:
	return result;
}

int berth_cuda_add(berth_cuda *lib, int ordinal, const char *ptx, const char *kernel, const uint32_t *a, const uint32_t *b, uint32_t *sum,
		   uint32_t n, const char **call) {
	int result, device;
	size_t size = (size_t)n * sizeof *a;
	void *context = NULL, *module = NULL, *function;
	uint64_t on_a = 0, on_b = 0, on_sum = 0;
	TRY("cuDeviceGet", lib->device(&device, ordinal));
	TRY("cuCtxCreate_v2", lib->context(&context, 0, device));
	TRY("cuMemAlloc_v2", lib->alloc(&on_a, size));
	TRY("cuMemAlloc_v2", lib->alloc(&on_b, size));
	TRY("cuMemAlloc_v2", lib->alloc(&on_sum, size));
	TRY("cuMemcpyHtoD_v2", lib->copy_in(on_a, a, size));
	TRY("cuMemcpyHtoD_v2", lib->copy_in(on_b, b, size));
	TRY("cuModuleLoadData", lib->load(&module, ptx));
	TRY("cuModuleGetFunction", lib->function(&function, module, kernel));
	void *parameters[] = {&on_a, &on_b, &on_sum, &n};
	TRY("cuLaunchKernel", lib->launch(function, (n + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, parameters, NULL));
	TRY("cuCtxSynchronize", lib->synchronize());
	TRY("cuMemcpyDtoH_v2", lib->copy_out(sum, on_sum, size));
done:
	if (on_a) ALWAYS("cuMemFree_v2", lib->release(on_a));
	if (on_b) ALWAYS("cuMemFree_v2", lib->release(on_b));
	if (on_sum) ALWAYS("cuMemFree_v2", lib->release(on_sum));
	if (module) ALWAYS("cuModuleUnload", lib->unload(module));
	if (context) ALWAYS("cuCtxDestroy_v2", lib->destroy(context));
	return result;
}

const char *berth_cuda_name(berth_cuda *lib, int result) {
	const char *name = NULL;
	return lib->error_name && lib->error_name(result, &name) == 0 ? name : NULL;
}
