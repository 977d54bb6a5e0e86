// The C ABI: descriptions of buffers.
#include "runtime/client/c_api/support.h"
#include "runtime/client/description.h"

namespace gpushm::client {
namespace {

const Description* DescriptionOf(const gpushm_description* handle) noexcept {
  return static_cast<const Description*>(Handle::Find(HandleKind::kDescription, handle));
}

}  // namespace
}  // namespace gpushm::client

namespace gc = gpushm::client;
using gpushm::Result;

extern "C" {

gpushm_status gpushm_attachment_set_description(gpushm_attachment* attachment, const void* data,
                                                uint64_t size_bytes) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    if (auto valid = gc::CheckArgument(data != nullptr, "data is NULL"); !valid) return valid;
    const auto wait = gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS);
    auto done = gc::SetDescription(*a, {static_cast<const std::byte*>(data), size_bytes}, wait);
    if (done) return done;
    return std::unexpected(done.error().WithContext(
        gpushm::Concat("set the description of \"", a->facts().name, "\"")));
  });
}

gpushm_status gpushm_description_open(gpushm_client* client, const char* name,
                                      const gpushm_description_options* options,
                                      gpushm_description** description) {
  return gc::EnterClient(client, [&](gc::Client& of) -> Result<void> {
    if (name == nullptr || description == nullptr) {
      return gpushm::Fail(gpushm::Code::kInvalidArgument, "name or description is NULL");
    }
    *description = nullptr;
    const auto given = gc::ReadOptions(options, "description_options");
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
    auto opened = gc::Describe(&of, text, given->generation, *wait);
    if (!opened) return std::unexpected(opened.error());
    *description = opened->release()->handle().As<gpushm_description>();
    return {};
  });
}

const void* gpushm_description_data(const gpushm_description* description) {
  const gc::Description* const d = gc::DescriptionOf(description);
  return d == nullptr ? nullptr : d->bytes().data();
}

uint64_t gpushm_description_size(const gpushm_description* description) {
  const gc::Description* const d = gc::DescriptionOf(description);
  return d == nullptr ? 0 : d->bytes().size();
}

uint64_t gpushm_description_generation(const gpushm_description* description) {
  const gc::Description* const d = gc::DescriptionOf(description);
  return d == nullptr ? 0 : d->generation();
}

void gpushm_description_close(gpushm_description* description) {
  delete gc::DescriptionOf(description);
}

}  // extern "C"
