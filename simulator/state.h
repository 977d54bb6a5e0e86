// The state folder, which represents the cards' memory. All processes that see it share it.
//
//   <folder>/cards.yaml, faults.yaml      optional, written by people and tests
//   <folder>/<card uuid>/mutex            held around creation, probing and cuIpc opens
//   <folder>/<card uuid>/ledger           an upper bound of the bytes in use
//   <folder>/<card uuid>/<32 hex digits>  one allocation or one context: its bytes, then a Record
//   <folder>/processes/<16 hex digits>    one process that uses the driver
//
// Invariants
//   (1) An allocation's file carries a shared flock exactly as long as any descriptor or mapping of
//       it exists in any process: the lock belongs to the open file, and both keep the file open.
//   (2) So a process that gets LOCK_EX on it, under the card's mutex, knows that it is free, and
//       unlinks it. Killing a process at any instruction leaves nothing that counts.
//   (3) A file is created, sized and marked under the card's mutex, so that probing never finds a
//       live file half made.
//   (4) The card's ledger is raised before a file appears and lowered only by the process that
//       unlinks one. So it is an upper bound also after the death of a process that held the mutex,
//       and creation probes all files only when the card looks full.
//   (5) A process lock is a POSIX lock: it ends with the process, and its children do not inherit
//       it.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simulator/config.h"

namespace gpushm::sim {

enum class Kind : uint32_t { kVmm = 1, kLegacy = 2, kContext = 3, kMpsContext = 4 };

// The last page of an allocation's file, so that a descriptor describes itself, whatever its path
// is here.
struct Record {
  uint64_t magic = 0;
  uint32_t version = 0;
  Kind kind = Kind::kVmm;
  uint64_t size_bytes = 0;
  uint64_t process = 0;  // Token of the creator.
  int32_t pid = 0;       // Of the creator, in its own namespace.
  uint32_t handle_types = 0;
  UuidBytes card{};
  UuidBytes id{};
};

class State;

// A process's reference to an allocation, and the host mapping through which its engine works. No
// child of fork() inherits it.
class Backing {
 public:
  Backing(const State* state, const Record& record, void* base, size_t mapped_bytes, int fd)
      : state_(state), record_(record), base_(base), mapped_bytes_(mapped_bytes), fd_(fd) {}
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  ~Backing();

  const Record& record() const { return record_; }
  std::byte* data() const { return static_cast<std::byte*>(base_); }

 private:
  const State* state_;
  Record record_;
  void* base_;
  size_t mapped_bytes_;
  int fd_;  // -1 if only a mapping keeps the file open.
};

enum class Outcome { kOk, kOutOfMemory, kNotFound, kForeign, kSystem };

struct Holder {
  int32_t pid = 0;
  uint64_t process = 0;
  uint64_t bytes = 0;
  bool has_context = false;
  bool mps = false;  // It is a client of MPS.
};

struct Usage {
  uint64_t used_bytes = 0;  // Includes the card's reserve.
  std::vector<Holder> holders;
};

class State {
 public:
  explicit State(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }

  // Makes the folder (0777) if it is missing. False: `error` says why.
  bool Prepare(std::string* error);
  // Marks this process as alive and gives it a token. Called once, before the first Create.
  bool RegisterProcess(std::string* error);
  uint64_t process() const { return process_; }
  bool IsAlive(uint64_t process) const;

  Outcome Create(const Card& card, Kind kind, uint64_t size_bytes, uint32_t handle_types,
                 std::shared_ptr<Backing>* backing) const;
  // A new descriptor of a live allocation, which keeps it alive; -1 if there is none.
  int OpenDescriptor(const Record& record) const;
  // Finds the allocation of a descriptor from elsewhere. kForeign: it is not one of the
  // simulator's.
  Outcome Adopt(int fd, std::shared_ptr<Backing>* backing) const;
  // By card and id, as a cuIpc handle names it.
  Outcome OpenById(const UuidBytes& card, const UuidBytes& id,
                   std::shared_ptr<Backing>* backing) const;

  // Probes every file of the card, unlinks the dead ones and counts the rest.
  Usage Probe(const Card& card) const;
  // Unlinks one allocation if nobody holds it.
  void Reap(const Record& record) const;

 private:
  std::string CardFolder(const UuidBytes& card) const;
  Outcome Map(int fd, const Record& record, std::shared_ptr<Backing>* backing) const;
  Usage ProbeLocked(const std::string& card_folder, int ledger_fd) const;
  void SweepProcesses() const;

  std::string folder_;
  bool keep_descriptors_ = false;
  uint64_t process_ = 0;
};

std::string Hex(const uint8_t* bytes, size_t count);

}  // namespace gpushm::sim
