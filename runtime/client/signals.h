// A signal as this process has opened it.
//
// In device memory (DeviceWord) it is stored by streams alone: the page for the host, the word for
// streams that wait.
//
// Threads: any thread may call any function; Close is the last call.
//
// Invariants
//   (1) A writer's cell is owned by the lease of `page_`, which it maps to write; a waiter maps it
//   to
//       read.
//   (2) recorded_ is never below the counter: what was given to a stream is in it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "contract/sync/page.h"
#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/device_word.h"
#include "runtime/client/open_page.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Signal {
 public:
  enum class Role : uint32_t { kWaiter = 0, kWriter = 1 };
  struct Options {
    Role role = Role::kWaiter;
    bool writers_all = false;
    bool device_memory = false;  // Of one that this call makes.
  };

  static Result<std::unique_ptr<Signal>> Open(Client* client, std::string_view name,
                                              const Options& options, const Wait& wait);
  // kBusy: streams of this process still use it. After a success the object may go.
  Result<void> Close();

  Result<void> Record(CUstream stream, uint64_t value);
  Result<void> Set(uint64_t value);
  Result<void> WaitOnStream(CUstream stream, uint64_t value);
  Result<void> WaitOnHost(uint64_t value, const Deadline& deadline) const;
  Result<void> Check(uint64_t value) const;
  signal::Reading Read() const { return signal::Read(cell()); }
  Result<CUdeviceptr> DeviceAddress();

  Client* client() const { return page_.client(); }
  const std::string& name() const { return page_.name(); }
  uint64_t generation() const { return page_.generation(); }
  Role role() const { return role_; }
  // Not what the page says now: others may write it.
  bool in_device_memory() const { return !word_ || *word_ != nullptr; }
  uint64_t recorded() const;

 private:
  Signal(OpenPage page, Role role, Result<std::unique_ptr<DeviceWord>> word = nullptr)
      : page_(std::move(page)), role_(role), word_(std::move(word)) {}
  static Result<std::unique_ptr<Signal>> OpenWaiter(Client* client, std::string_view name,
                                                    const Wait& wait);
  static Result<std::unique_ptr<Signal>> TryWrite(Client* client, std::string_view name,
                                                  const Options& options, const Wait& wait);
  static Result<std::unique_ptr<Signal>> Make(Client* client, std::string_view name,
                                              const Options& options, uint64_t after_generation,
                                              const Wait& wait);

  signal::Cell& cell() const { return page_.cell(0); }
  Result<void> CheckNext(uint64_t value) const;
  Result<void> StoreBoth(CUstream stream, uint64_t value);

  OpenPage page_;
  const Role role_;
  // Null: the signal is on the page alone. A failure: of a waiter that cannot use it in streams.
  Result<std::unique_ptr<DeviceWord>> word_;
  mutable std::mutex mutex_;
  uint64_t recorded_ = 0;  // Under mutex_.
};

}  // namespace gpushm::client
