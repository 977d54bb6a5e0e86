#include "sidecar/broker/content.h"

#include <utility>

namespace gpushm::broker {
namespace {

constexpr char kLoadWasCut[] =
    "its load was in progress when the broker was restarted, or had failed before";

}  // namespace

void Content::MoveTo(BufferState state) {
  GPUSHM_ASSERT(state != BufferState::kFailed || state_ == BufferState::kLoading);
  GPUSHM_ASSERT(state != BufferState::kWriterDied || is_there());
  state_ = state;
}

Result<void> Content::Check(const std::string& name) const {
  if (state_ == BufferState::kLoading) {
    return Fail(Code::kLoading,
                Concat("the content of \"", name, "\" is not loaded yet",
                       reason_.text.empty() ? "" : ": ", reason_.text),
                "wait for it: use gpushm_wait, or a timeout in the options");
  }
  if (state_ == BufferState::kFailed) {
    return Fail(Code::kSystem, Concat("loading \"", name, "\" failed: ", reason_.text),
                "load it again: gpushmctl load");
  }
  return {};
}

void Content::Await() {
  MoveTo(BufferState::kLoading);
  loaded_bytes_ = 0;
}

void Content::Load(uint64_t client, uint64_t loaded_bytes) {
  MoveTo(BufferState::kLoading);
  loader_ = client;
  one_writer_loads_ = false;
  loaded_bytes_ = loaded_bytes;
  reason_ = {};
}

void Content::Complete(uint64_t loaded_bytes) {
  MoveTo(BufferState::kReady);
  loader_ = 0;
  one_writer_loads_ = false;
  loaded_bytes_ = loaded_bytes;
  reason_ = {};
}

bool Content::State(uint64_t client, Reason reason) {
  if (is_there() || IsLoadedByOther(client)) return false;
  // A load in progress fails when it is given up.
  const bool fails = !reason.passes && !is_being_loaded() && state_ != BufferState::kFailed;
  if (!fails && reason_ == reason) return false;
  if (fails) MoveTo(BufferState::kFailed);
  reason_ = std::move(reason);
  return true;
}

bool Content::GiveUp(uint64_t client, const Reason& why, bool tries_again) {
  if (!one_writer_loads_ && loader_ != client) return false;
  if (reason_.text.empty()) reason_ = why;
  loader_ = 0;
  one_writer_loads_ = false;
  if (tries_again && reason_.passes) {
    Await();
  } else {
    MoveTo(BufferState::kFailed);
  }
  return true;
}

bool Content::LoseWriter() {
  if (!is_there()) return false;
  MoveTo(BufferState::kWriterDied);
  return true;
}

void Content::Restore(const std::set<uint64_t>& writers, bool awaited, bool from_file) {
  if (state_ == BufferState::kLoading) {
    const bool begun = !awaited || loaded_bytes_ > 0;
    if (writers.empty() && !awaited) {
      MoveTo(BufferState::kFailed);
    } else if (writers.size() == 1 && begun) {
      loader_ = *writers.begin();  // It loads by itself and continues.
    } else if (!writers.empty() && begun) {
      one_writer_loads_ = true;
    }
  }
  if (state_ == BufferState::kFailed && from_file) Await();
  if (state_ == BufferState::kFailed) reason_ = {Code::kPeerDied, kLoadWasCut};
}

}  // namespace gpushm::broker
