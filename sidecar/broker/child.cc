#include "sidecar/broker/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/unique_fd.h"

namespace gpushm::broker {

Result<pid_t> StartChild(const std::vector<std::string>& command,
                         const std::vector<std::string>& arguments,
                         std::span<const int> descriptors) {
  constexpr int kFirst = 3;
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);

  // dup2 to its own number would leave close-on-exec set: numbers above the targets first.
  const int beyond = kFirst + static_cast<int>(descriptors.size());
  std::vector<UniqueFd> copies;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int descriptor : descriptors) {
    copies.emplace_back(fcntl(descriptor, F_DUPFD_CLOEXEC, beyond));
    if (!copies.back()) {
      const int error = errno;
      posix_spawn_file_actions_destroy(&actions);
      return FailSystem(error, "F_DUPFD_CLOEXEC");
    }
    posix_spawn_file_actions_adddup2(&actions, copies.back().get(),
                                     kFirst + static_cast<int>(copies.size()) - 1);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = -1;
  const int error = posix_spawn(&child, words[0], &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return FailSystem(error, Concat("start of ", words[0]));
  return child;
}

}  // namespace gpushm::broker
