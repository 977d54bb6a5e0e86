// The commands of gpushmctl, one file for each family. Each Add... function declares its
// subcommands in the CLI11 app. Parsing then sets Context::action, which app.cc runs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/ctl/connection.h"
#include "runtime/ctl/exit_code.h"
#include "runtime/ctl/views.h"

namespace gpushm::ctl {

// Options that every command takes, before or after its name.
struct Globals {
  std::string folder;
  std::string pod_uid;
  std::optional<int64_t> timeout_ms;  // Set only if given.
  bool json = false;
  bool no_color = false;

  // The value for gpushm.h's timeout_ms. A typed 0 means "do not wait".
  int64_t TimeoutMs() const;
};

struct Context {
  Globals globals;
  std::function<Result<ExitCode>()> action;

  // Without --timeout a missing broker is an immediate error, because nobody wants to look at a
  // silent terminal for ten seconds. `patient` waits for the broker in any case.
  Result<Connection> Connect(bool patient = false) const;
  Style StdoutStyle() const;
};

void AddLookCommands(CLI::App* app, Context* context);       // ls, stat
void AddWaitCommand(CLI::App* app, Context* context);        // wait
void AddTopCommand(CLI::App* app, Context* context);         // top
void AddMakeCommands(CLI::App* app, Context* context);       // create, rm
void AddTransferCommands(CLI::App* app, Context* context);   // load, save
void AddVerifyCommand(CLI::App* app, Context* context);      // verify
void AddGpuCommands(CLI::App* app, Context* context);        // gpu ls, gpu drain, gpu undrain
void AddClaimCommand(CLI::App* app, Context* context);       // claim
void AddDoctorCommand(CLI::App* app, Context* context);      // doctor
void AddCompletionCommand(CLI::App* app, Context* context);  // completion

// What a command that prints `text` and has then succeeded returns.
Result<ExitCode> PrintDone(std::string_view text);

// Option values of this project's own types. Parsing refuses bad ones with a reason.
CLI::Option* AddBytesOption(CLI::App* app, const std::string& names, uint64_t* bytes,
                            const std::string& help);
// --format: auto, raw or tensors. FormatOf: a gpushm_format.
CLI::Option* AddFormatOption(CLI::App* app, std::string* format, const std::string& help);
uint32_t FormatOf(std::string_view format);
CLI::Option* AddDurationOption(CLI::App* app, const std::string& names,
                               std::function<void(int64_t duration_ms)> set,
                               const std::string& help);

}  // namespace gpushm::ctl
