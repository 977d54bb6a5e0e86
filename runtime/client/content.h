// The content of attached generations: how many bytes it has, and who fills it.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <string_view>

#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "runtime/client/attachment.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

Result<void> SetContent(Attachment* attachment, uint64_t content_bytes, const Wait& wait);
Result<void> ReportContent(const Attachment& attachment, uint64_t loaded_bytes, bool complete,
                           const Wait& wait, const Digest& digest = {});
// Tells the broker, and so everybody who waits for the buffer, why a load waits or has failed.
// Without effect if the buffer has its content, or a process of another container loads it. Nobody
// is told that it cannot be told.
void StateReason(Client* client, std::string_view name, const Status& why);
// Tells the broker that a load into a published generation has failed. `detaches`: the caller
// detaches next.
void GiveContentUp(Attachment* attachment, bool detaches);
// Whether all bytes of the generation are there.
Result<void> CheckWhole(const Attachment& attachment);

}  // namespace gpushm::client
