#define _GNU_SOURCE
#include <dlfcn.h>

#include "bridge.h"

const char *libraryFile(void) {
	Dl_info info;
	return dladdr((void *)libraryFile, &info) ? info.dli_fname : 0;
}
