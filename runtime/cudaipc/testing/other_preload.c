// Another library that an image preloads, and which answers getpid(), as libfaketime can.
#include <unistd.h>
__attribute__((visibility("default"))) pid_t getpid(void) { return 4711; }
