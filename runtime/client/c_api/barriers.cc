// The C ABI: barriers.
#include "runtime/client/sync/barriers.h"
#include "runtime/client/c_api/support.h"
#include "runtime/include/gpushm/sync.h"

namespace gc = gpushm::client;
using gpushm::Code;
using gpushm::Concat;
using gpushm::Fail;
using gpushm::Result;

namespace {

template <typename Body>
gpushm_status With(const gpushm_barrier* handle, Body body) {
  return gc::EnterWith<gc::Barrier>(gc::HandleKind::kBarrier, handle, "barrier", body);
}

}  // namespace

extern "C" {

gpushm_status gpushm_barrier_open(gpushm_client* client, const char* name,
                                  const gpushm_barrier_options* options, gpushm_barrier** barrier) {
  const auto open = [](gc::Client* of, std::string_view text, const gpushm_barrier_options& given,
                       const gc::Wait& wait) -> Result<std::unique_ptr<gc::Barrier>> {
    if (given.reserved != 0) {
      return Fail(Code::kInvalidArgument,
                  Concat("barrier_options.reserved is ", given.reserved, ": it must be 0"),
                  "initialise the options with GPUSHM_INIT, and leave this field 0");
    }
    return gc::Barrier::Open(of, text, given.participants, wait);
  };
  return gc::OpenNamed(client, name, options, gc::HandleKind::kBarrier, "barrier", barrier, open);
}

gpushm_status gpushm_barrier_close(gpushm_barrier* barrier) {
  return gc::CloseNamed<gc::Barrier>(gc::HandleKind::kBarrier, barrier, "barrier");
}

gpushm_status gpushm_barrier_wait(gpushm_barrier* barrier, int64_t timeout_ms) {
  return With(barrier, [&](gc::Barrier& b) -> Result<void> {
    const auto wait = gc::Wait::From(timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    return b.WaitOnHost(wait->condition);
  });
}

gpushm_status gpushm_barrier_wait_on_stream(gpushm_barrier* barrier, void* stream) {
  return With(barrier,
              [&](gc::Barrier& b) { return b.WaitOnStream(static_cast<CUstream>(stream)); });
}

gpushm_status gpushm_barrier_check(gpushm_barrier* barrier) {
  return With(barrier, [](gc::Barrier& b) { return b.Check(); });
}

gpushm_status gpushm_barrier_get_info(const gpushm_barrier* barrier, gpushm_barrier_info* info) {
  return With(barrier, [&](const gc::Barrier& b) {
    return gc::FillInfo(info, "info", [&](gpushm_barrier_info* filled) -> Result<void> {
      const gc::Barrier::Facts facts = b.facts();
      gc::CopyText(filled->name, b.name());
      filled->generation = facts.generation;
      filled->point = facts.point;
      filled->participants = facts.participants;
      filled->joined = facts.joined;
      filled->cell = facts.cell;
      return {};
    });
  });
}

}  // extern "C"
