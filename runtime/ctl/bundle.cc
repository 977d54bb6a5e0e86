#include "runtime/ctl/bundle.h"

#include <algorithm>
#include <utility>

#include "platform/base/version.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/tar.h"

namespace gpushm::ctl {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

constexpr std::string_view kNeverIn[] = {
    "bytes and descriptions of buffers",
    "values of environment variables, except those of known GPUSHM_, CUDA_ and NVIDIA_ names",
    "tokens, keys and certificates",
    "comments of configuration files",
};

}  // namespace

Bundle::Bundle(Write write, int64_t began_unix_ns, Deadline whole, BundleLimits limits)
    : write_(std::move(write)), began_unix_ns_(began_unix_ns), whole_(whole), limits_(limits) {}

Result<void> Bundle::WriteFile(std::string_view name, std::string_view text) {
  if (auto done = write_(TarHeader(name, text.size(), began_unix_ns_ / kSecondNs)); !done) {
    return done;
  }
  if (auto done = write_(text); !done) return done;
  if (auto done = write_(TarPadding(text.size())); !done) return done;
  written_bytes_ += text.size();
  return {};
}

Result<void> Bundle::Add(std::string name, std::string what, const Make& make) {
  BundleEntry& entry = entries_.emplace_back(std::move(name), std::move(what));
  if (whole_.Passed()) {
    entry.missing = true;
    entry.why = "the time for the whole bundle was used up by the parts before it";
    entry.remedy = "use a longer --timeout";
    return {};
  }
  Result<Part> part = make();
  if (!part) {
    entry.missing = true;
    entry.why = part.error().what();
    entry.remedy = part.error().remedy();
    return {};
  }
  entry.why = std::move(part->lacks);
  const size_t room = std::min(limits_.part_bytes, limits_.bundle_bytes - written_bytes_);
  if (part->text.size() > room) {
    entry.why = Concat("only the first ", room, " of ", part->text.size(),
                       " bytes are here: a part has at most ", limits_.part_bytes,
                       " bytes, and all parts together ", limits_.bundle_bytes,
                       entry.why.empty() ? "" : "; ", entry.why);
    part->text.resize(room);
  }
  entry.bytes = part->text.size();
  return WriteFile(entry.name, part->text);
}

Result<void> Bundle::Finish() {
  if (auto done = WriteFile(kBundleIndex, Index()); !done) return done;
  return write_(TarEnd());
}

std::string Bundle::Index() const {
  Json parts = Json::array();
  for (const BundleEntry& entry : entries_) {
    parts.push_back({{"name", entry.name},
                     {"what", entry.what},
                     {"state", entry.missing       ? "missing"
                               : entry.why.empty() ? "complete"
                                                   : "partial"},
                     {"bytes", entry.bytes},
                     {"why", entry.why},
                     {"remedy", entry.remedy}});
  }
  return JsonText({{"made_by", Concat("gpushmctl ", kVersion)},
                   {"began", FormatTime(began_unix_ns_)},
                   {"parts", parts},
                   {"never_in", kNeverIn}});
}

}  // namespace gpushm::ctl
