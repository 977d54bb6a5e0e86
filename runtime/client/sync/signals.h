// A signal that this process has opened.
//
// Threads: any thread may call any function; Close is the last call.
//
// Invariants
//   (1) The lease of `page_` owns a writer's cell, and the writer maps the page to write. A waiter
//       maps it to read.
//   (2) recorded_ is never below the signal's value: it includes every value given to a stream.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <expected>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "contract/sync/page.h"
#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/sync/open_page.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Signal {
 public:
  enum Role : uint32_t { kWaiter = 0, kWriter = 1 };
  struct Options {
    Role role = Role::kWaiter;
    bool writers_all = false;
  };

  static Result<std::unique_ptr<Signal>> Open(Client* client, std::string_view name,
                                              const Options& options, const Wait& wait);
  // kBusy: streams of this process still use it. After success the object may be destroyed.
  Result<void> Close();

  Result<void> Record(CUstream stream, uint64_t value);
  Result<void> Set(uint64_t value);
  Result<void> WaitOnStream(CUstream stream, uint64_t value);
  Result<void> WaitOnHost(uint64_t value, const Deadline& deadline) const;
  Result<void> Check(uint64_t value) const;
  sync::Reading Read() const { return sync::Read(cell()); }
  Result<CUdeviceptr> DeviceAddress();
  // As Ring::Look, for a wait for `value`.
  std::expected<sync::LookAgain, Code> Look(uint64_t value) const;
  // As Ring::HearAlarm.
  Result<UniqueFd> HearAlarm(uint64_t connection, const Deadline& deadline) const;

  Client* client() const { return page_.client(); }
  const std::string& name() const { return page_.name(); }
  uint64_t generation() const { return page_.generation(); }
  Role role() const { return role_; }
  uint64_t recorded() const;

 private:
  Signal(OpenPage page, Role role) : page_(std::move(page)), role_(role) {}
  static Result<std::unique_ptr<Signal>> OpenWaiter(Client* client, std::string_view name,
                                                    const Wait& wait);
  static Result<std::unique_ptr<Signal>> TryWrite(Client* client, std::string_view name,
                                                  const Options& options, const Wait& wait);
  static Result<std::unique_ptr<Signal>> Make(Client* client, std::string_view name,
                                              const Options& options, uint64_t after_generation,
                                              const Wait& wait);

  sync::Cell& cell() const { return page_.cell(0); }
  Result<void> CheckNext(uint64_t value) const;
  void ExpectFromGpu(uint64_t value);

  OpenPage page_;
  const Role role_;
  mutable std::mutex mutex_;
  uint64_t recorded_ = 0;  // Under mutex_.
  bool closed_ = false;    // Under mutex_.
};

}  // namespace gpushm::client
