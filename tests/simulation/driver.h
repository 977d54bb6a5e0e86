// The GPU of a simulated world: memory is a file that has no name, and its descriptor keeps it. It
// takes the driver's place where CudaApi::Load looks for it.
//
// Threads: the world's.
#pragma once

#include <cstdint>
#include <string>

namespace gpushm::simulation {

inline constexpr char kDriverFolder[] = "simulation-driver";
inline constexpr char kGpu[] = "GPU-67707573-686d-0000-0000-000000000001";

// Where its memory is: a folder. GPUSHM_SIM_DIR of the processes must be the same.
void SetMemoryFolder(const std::string& folder);
// One of so many allocations fails for lack of memory; 0: none.
void SetAllocationsFail(uint64_t one_in);
// As cuMemCreate and its export, for a client that offers memory.
int MakeMemory(uint64_t bytes);

void* DriverLibrary();
void* DriverSymbol(const char* name);

}  // namespace gpushm::simulation
