// The baseline of an attach: the same memory, fetched and mapped by hand, with nothing that gpushm
// adds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "runtime/client/session.h"
#include "tests/bench/process.h"

namespace gpushm::bench {

// A process that answers each one-byte datagram with a descriptor, and does nothing else. This is
// the least that handing memory over a socket can cost.
class RawServer {
 public:
  static constexpr char kRole[] = "raw-server";
  static void Serve(Channel& parent, const std::vector<std::string>& arguments);

  // Serves `descriptor` from now on.
  static RawServer Start(int descriptor);
  UniqueFd Fetch();

 private:
  explicit RawServer(Child child) : child_(std::move(child)) {}
  Child child_;
};

// The descriptor that a broker gives for a buffer. The lease lasts as long as this object, so the
// buffer stays unchanged.
class BorrowedDescriptor {
 public:
  static BorrowedDescriptor Borrow(const std::filesystem::path& folder, const std::string& name);
  int get() const { return descriptor_.get(); }

 private:
  std::unique_ptr<client::Session> session_;
  UniqueFd descriptor_;
};

}  // namespace gpushm::bench
