// The device addresses of this process: which are reserved, and what is mapped there. Host code
// that accesses one faults (PROT_NONE), as on a GPU; the engine accesses the bytes through Resolve.
//
// Threads: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/state.h"

namespace gpushm::sim {

// One allocation as this process knows it; handles and mappings share it.
struct Allocation {
  std::shared_ptr<Backing> backing;
  bool imported = false;
  int device = -1;  // Ordinal in this process; -1: its card is not visible here.
};

enum class Rights : uint32_t { kNone = 0, kRead = 1, kReadWrite = 3 };  // CUmemAccess_flags.

struct Mapping {
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  std::shared_ptr<Allocation> allocation;
  std::map<int, Rights> rights;  // By device ordinal; VMM grants only what SetAccess set.
  bool vmm = true;
  uint64_t id = 0;
};

// Of smaller pieces of registered memory, the processor reads the bytes while the copy is queued:
// up to 24 KiB on an H200 (driver 580.159). So a file that was cut costs the process its life
// (SIGBUS).
inline constexpr uint64_t kReadByGpuBytes = uint64_t{32} << 10;

struct HostRange {
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  bool read_only = false;
  // What the GPU reads instead of the memory: the pages of a disk's file, as they were when they
  // were registered. Null: the memory itself.
  std::shared_ptr<std::vector<std::byte>> pinned = {};
  bool allocated = false;  // By cuMemHostAlloc.
  int device = 0;          // Whose context made it; it ends with that context.
  uint64_t id = 0;         // As in Mapping.
};

// A piece of memory that the engine may access; `keep` holds it that long.
struct Segment {
  std::byte* data = nullptr;
  uint64_t size_bytes = 0;
  std::shared_ptr<Backing> keep;
};

enum class Lookup {
  kOk,
  kUnknown,  // Not a device address, or nothing is mapped there.
  kDenied,   // Mapped, but without the right to do this.
};

class AddressSpace {
 public:
  // Returns 0 if there is no room.
  uint64_t Reserve(uint64_t size_bytes, uint64_t alignment_bytes, uint64_t hint);
  // False: no such reservation, or something is still mapped in it.
  bool Free(uint64_t address, uint64_t size_bytes);

  bool Map(const Mapping& mapping);
  // Removes the mappings that form exactly this range.
  bool Unmap(uint64_t address, uint64_t size_bytes);
  bool SetRights(uint64_t address, uint64_t size_bytes, int device, Rights rights);
  // The mapping at an address.
  bool Find(uint64_t address, Mapping* mapping) const;
  // True for a reserved address, with or without memory.
  bool IsReserved(uint64_t address) const;

  bool AddHost(const HostRange& range);
  bool RemoveHost(uint64_t address, bool allocated);
  // Also removes what cuMemHostAlloc made there.
  void RemoveHostOf(int device);
  bool FindHost(uint64_t address, HostRange* range) const;

  // The pieces of memory at [address, address + size_bytes) that `device` may use.
  Lookup Resolve(uint64_t address, uint64_t size_bytes, bool write, int device,
                 std::vector<Segment>* segments) const;

 private:
  const Mapping* FindLocked(uint64_t address) const;

  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> reservations_;  // Address -> size.
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, HostRange> host_;
  uint64_t next_id_ = 1;
};

}  // namespace gpushm::sim
