// Declarations of the bridge between C and Go.
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

// libraryFile returns the path that this library was opened by; null when it is not known.
const char *libraryFile(void);
