// The bash completion script, made from the command line's own declaration.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpushm::ctl {

// Completes commands, options and their values, files, and buffers' names. The names come from
// `gpushmctl ls --names` with the --folder and --pod-uid of the line. It needs bash 4.2, but not
// bash-completion.
std::string BashCompletion(const CLI::App& app);

}  // namespace gpushm::ctl
