// The part of CUDA's driver API that a check of a GPU needs, looked up in a library that is loaded by its path. No CUDA header is
// needed: handles are pointers, results and devices are int, addresses in GPU memory 64 bits.
#include <stddef.h>
#include <stdint.h>

typedef struct berth_cuda berth_cuda;

// berth_cuda_open loads a library. It returns NULL with a reason, which the caller frees, when that fails or a call is missing.
berth_cuda *berth_cuda_open(const char *file, char **reason);

// berth_cuda_file returns the file that was loaded, as the dynamic loader calls it.
const char *berth_cuda_file(const berth_cuda *lib);

// berth_cuda_calling returns the call that has not returned yet; "" when there is none.
const char *berth_cuda_calling(berth_cuda *lib);

// Each of these returns the CUresult. berth_cuda_add also says which call returned it.
int berth_cuda_init(berth_cuda *lib);
int berth_cuda_version(berth_cuda *lib, int *version);
int berth_cuda_count(berth_cuda *lib, int *count);
int berth_cuda_device(berth_cuda *lib, int ordinal, unsigned char *uuid, char *name, int length, const char **call);
int berth_cuda_add(berth_cuda *lib, int ordinal, const char *ptx, const char *kernel, const uint32_t *a, const uint32_t *b, uint32_t *sum, uint32_t n, const char **call);

// berth_cuda_name returns the name of a result, or NULL.
const char *berth_cuda_name(berth_cuda *lib, int result);
