// The kernel of digests as the driver takes it (digest_images.cmake makes the source).
//
// Threads: any.
#pragma once

#include <span>

namespace gpushm::digest_kernel {

// For cuModuleLoadData. The last is PTX, which the driver compiles for any GPU in 0.1 to 0.2 s.
// Those before it, if there are any, are machine code for one kind of GPU each, which loads in
// 0.1 ms.
std::span<const unsigned char* const> Images();

}  // namespace gpushm::digest_kernel
