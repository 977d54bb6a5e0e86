// cuda.h and nvml.h with their functions exported from this library. Included first by every file
// of the simulated driver that defines one: the tree is compiled with hidden visibility.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <nvml.h>
#pragma GCC visibility pop
