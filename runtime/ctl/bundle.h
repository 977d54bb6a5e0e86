// A support bundle: parts with bounds in a tar archive, and an index that says what each part is
// and what is missing and why (docs/design/support-bundle.md).
//
// Contract
//   1. Each part is written as soon as it is made, so a bundle that is cut off has what came
//   before.
//   2. A part that fails, is too long or comes after the deadline is an entry of the index. Only a
//      failure to write ends the bundle.
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::ctl {

struct BundleLimits {
  // The largest parts are those of a full broker and of a node's metrics, of 3 to 5 MiB each.
  size_t part_bytes = size_t{8} << 20;
  size_t bundle_bytes = size_t{32} << 20;
};

struct BundleEntry {
  std::string name;
  std::string what;
  size_t bytes = 0;
  bool missing = false;
  std::string why{};  // Why it is missing or not complete; empty: it is complete.
  std::string remedy{};
};

class Bundle {
 public:
  using Write = std::function<Result<void>(std::string_view)>;
  struct Part {
    std::string text;
    std::string lacks{};  // What it does not have and why; empty: it is complete.
  };
  using Make = std::function<Result<Part>()>;

  // `whole`: when parts are no longer begun.
  Bundle(Write write, int64_t began_unix_ns, Deadline whole, BundleLimits limits = {});

  // `name` is the file's; `what` says in words what is in it.
  Result<void> Add(std::string name, std::string what, const Make& make);
  // Writes the index and the end of the archive.
  Result<void> Finish();

  const std::vector<BundleEntry>& entries() const { return entries_; }
  // The index as JSON. `docs/reference/gpushmctl.md` has its members.
  std::string Index() const;

 private:
  Result<void> WriteFile(std::string_view name, std::string_view text);

  Write write_;
  int64_t began_unix_ns_;
  Deadline whole_;
  BundleLimits limits_;
  size_t written_bytes_ = 0;
  std::vector<BundleEntry> entries_;
};

inline constexpr std::string_view kBundleIndex = "index.json";

}  // namespace gpushm::ctl
