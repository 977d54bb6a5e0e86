// gpushmctl's command line: its options, its commands, and the result of a run.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "runtime/ctl/commands.h"

namespace gpushm::ctl {

// The whole command line; help and completion are made from it, too. `context` must outlive the
// app.
std::unique_ptr<CLI::App> MakeApp(Context* context);

// Parses the arguments, runs the command and prints errors. Returns the exit status.
int Main(int argc, char** argv);

}  // namespace gpushm::ctl
