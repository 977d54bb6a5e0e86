// What the driver's services ask of the plugin. Allocator implements it.
#pragma once

#include <functional>
#include <string>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "plugin/binding/book.h"

namespace gpushm::plugin::dra {

// Calls come from several threads at once.
class Handler {
 public:
  virtual ~Handler() = default;

  // Makes everything that the claim's containers need to start, and returns when it is there.
  // Repeatable: a known claim gets the same again. Waits until the deadline for what passes by
  // itself, such as a former pod that still ends. Has no effect once `given_up` is true.
  virtual Result<void> PrepareClaim(const binding::ClaimedGpus& claim, const Deadline& deadline,
                                    const std::function<bool()>& given_up) = 0;

  // Undoes it. Waits until the deadline for the end of the claim's broker. Success for a claim that
  // it does not know.
  virtual Result<void> UnprepareClaim(const std::string& uid, const Deadline& deadline) = 0;
};

}  // namespace gpushm::plugin::dra
