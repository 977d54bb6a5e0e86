// What a buffer's attributes can be: for the wire, the registry, the library and the C API, which
// name them by the same numbers (runtime/client/c_api/numbers.cc checks that).
//
// The enums are not classes, so that they convert to the numbers of messages, records and structs
// of C without a cast. From a number: `Transport{number}`, once it was validated. Their names are
// written with the type: `Transport::kVmm`.
#pragma once

#include <cstdint>

#include "platform/base/access.h"

namespace gpushm {

namespace types {

// kHost: not GPU memory, but the sync page of a signal, barrier or ring (contract/sync/page.h), a
// memfd. It is read-only if read access was requested.
// kBlocks: a range of several allocations with descriptors, which are mapped side by side, or of
// one from another byte than its first. The registry and the C API show it as kVmm.
enum Transport : uint32_t { kVmm = 1, kCuIpc = 2, kHost = 3, kBlocks = 4 };

enum BufferState : uint32_t { kLoading = 1, kReady = 2, kWriterDied = 3, kFailed = 4 };

// What happens to a buffer whose writer dies while it has it attached for writing.
enum OnWriterExit : uint32_t {
  kMark = 0,  // Kept, and marked as left by a dead writer.
  kKeep = 1,  // Kept, without a mark.
  kDrop = 2,  // The generation is withdrawn.
};

// How a client's GPUs reach a buffer.
enum PeerWay : uint32_t {
  kNone = 0,    // All of them are the buffer's own GPU.
  kNvLink = 1,  // Another GPU maps it,
  kPcie = 2,    // in one of these ways.
  kStaged = 3,  // A copy in the other GPU's memory.
};

}  // namespace types

using types::BufferState;
using types::OnWriterExit;
using types::PeerWay;
using types::Transport;

}  // namespace gpushm
