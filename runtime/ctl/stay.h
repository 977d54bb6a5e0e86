// gpushmctl load --stay: keeps a buffer loaded from its file, as the container that a pod gets for
// each `file:` does.
//
// The process that stays opens neither the file nor CUDA. So it costs nothing on the GPU, and a
// volume or a driver that hangs holds up only its child, which is `gpushmctl load` with the same
// words. It starts that child while the buffer lacks its content: at first, after a failure, and
// when a new broker came without the bytes. Standard error gets one line for each new reason why
// the buffer is not loaded.
//
// Invariants
//   (1) At most one child runs, and it ends with this process.
//   (2) It never ends by itself: SIGTERM or SIGINT ends it, with exit code 0, whatever hangs.
//   (3) A buffer that has its content is left alone, whoever loaded it.
//
// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/ctl/commands.h"

namespace gpushm::ctl {

// `words`: the child's command line.
Result<ExitCode> StayLoaded(const Context& context, const std::string& name,
                            std::vector<std::string> words);

// This process's command line without --stay.
Result<std::vector<std::string>> WordsWithoutStay();

}  // namespace gpushm::ctl
