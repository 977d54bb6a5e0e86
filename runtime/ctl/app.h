// gpushmctl's command line: options, commands, and what its run comes to.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "runtime/ctl/commands.h"

namespace gpushm::ctl {

// The whole command line, also walked for help and completion. `context` must outlive the app.
std::unique_ptr<CLI::App> MakeApp(Context* context);

// Parses, runs, prints errors; the exit status.
int Main(int argc, char** argv);

}  // namespace gpushm::ctl
