#include "runtime/ctl/completion.h"

#include <string_view>
#include <vector>

#include "runtime/ctl/commands.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

// The values that an option takes, as the parser checks them. "IN:{a,b}" of CLI::IsMember is the
// option's type name, which is all that CLI11 2.1 reports of a validator.
std::string ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string choices = type.substr(begin + 1, end - begin - 1);
  for (char& c : choices) {
    if (c == ',') c = ' ';
  }
  return choices;
}

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

struct Words {
  std::string options;   // "--a --b"
  std::string values;    // case arms: option) words
  std::string takers;    // "--a|--b": options that take a value
  std::string operands;  // "FILE NAME"
};

Words WordsOf(const CLI::App& app) {
  Words words;
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string> names = NamesOf(*option);
    if (names.empty()) {
      words.operands += (words.operands.empty() ? "" : " ") + option->get_name(true);
      if (option->get_expected_max() > 1) words.operands += " ...";
      continue;
    }
    std::string pattern;
    for (const std::string& name : names) {
      if (!option->get_group().empty()) words.options += " " + name;
      pattern += (pattern.empty() ? "" : "|") + name;
    }
    if (option->get_expected_max() == 0) continue;  // A flag.
    words.takers += (words.takers.empty() ? "" : "|") + pattern;
    const std::string choices = ChoicesOf(*option);
    if (!choices.empty()) {
      words.values += "    " + pattern + ") COMPREPLY=($(compgen -W '" + choices +
                      "' -- \"$cur\")); return ;;\n";
    }
  }
  return words;
}

constexpr std::string_view kHead =
    R"bash(# bash completion for gpushmctl, made by `gpushmctl completion bash`.
# Use it: source <(gpushmctl completion bash), or put it into /etc/bash_completion.d.

_gpushmctl_names() {
  local names
  names=$("${program/#\~/$HOME}" "${where[@]}" ls --names 2>/dev/null) || names=
  mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
}

_gpushmctl_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$@" -- "$cur")
}

)bash";

// The script after the tables: it walks the line, then completes the word at the cursor.
constexpr std::string_view kTail = R"bash(
_gpushmctl() {
  local program=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} previous='' word command=''
  local -a where=()
  local i given=0
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    # "--format=raw" is three words here: bash splits at "=".
    if [[ $word == '=' ]]; then continue; fi
    if [[ -n $previous ]]; then
      case $previous in --folder | --pod-uid) where+=("$previous" "$word") ;; esac
      previous=''
    elif _gpushmctl_takes_value "$command" "$word"; then
      previous=$word
    elif [[ $word == -* ]]; then
      continue
    elif [[ -z $command ]]; then
      command=$word
    else
      given=$((given + 1))
    fi
  done
  if [[ $cur == '=' ]]; then cur=''; fi
  if [[ -n $previous ]]; then
    case $previous in --folder) _gpushmctl_files -d; return ;; esac
    _gpushmctl_value "$command" "$previous"
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_gpushmctl_options "$command")" -- "$cur")
  elif [[ -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$_gpushmctl_commands" -- "$cur")
  else
    _gpushmctl_operand "$command" "$given"
  fi
}
complete -F _gpushmctl gpushmctl
)bash";

// A function "case $1 in" over the commands; `arm` returns the body for each command.
template <typename Arm>
std::string PerCommand(std::string_view name, const CLI::App& app, Arm arm) {
  std::string text = std::string(name) + "() {\n  case $1 in\n";
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string body = arm(*command);
    if (!body.empty()) text += "    " + command->get_name() + ")\n" + body + "      ;;\n";
  }
  return text + "  esac\n";
}

std::string OperandArm(const CLI::App& command) {
  if (command.get_name() == "create") return "";  // Nothing to complete: a new name, a size.
  if (command.get_name() == "completion") {
    return "      mapfile -t COMPREPLY < <(compgen -W 'bash' -- \"$cur\")\n";
  }
  const std::string operands = WordsOf(command).operands;
  if (operands == "NAME ...") return "      _gpushmctl_names\n";
  std::string text;
  size_t begin = 0;
  for (int index = 0; begin < operands.size(); ++index) {
    const size_t end = std::min(operands.find(' ', begin), operands.size());
    const std::string operand = operands.substr(begin, end - begin);
    const std::string act = operand == "FILE" ? "_gpushmctl_files -f" : "_gpushmctl_names";
    text += "      if [[ $2 == " + std::to_string(index) + " ]]; then " + act + "; fi\n";
    begin = end + 1;
  }
  return text;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const Words global = WordsOf(app);
  std::string commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
  }
  std::string text(kHead);
  text += "_gpushmctl_commands='" + commands + "'\n\n";
  text += PerCommand("_gpushmctl_options", app, [](const CLI::App& command) {
    return "      echo '" + WordsOf(command).options.substr(1) + "'\n";
  });
  text += "  echo '" + global.options.substr(1) + "'\n}\n\n";
  text += PerCommand("_gpushmctl_takes_value", app, [](const CLI::App& command) {
    const std::string takers = WordsOf(command).takers;
    return takers.empty() ? "" : "      case $2 in " + takers + ") return 0 ;; esac\n";
  });
  text += "  case $2 in " + global.takers + ") return 0 ;; esac\n  return 1\n}\n\n";
  const auto value_case = [](const std::string& arms) {
    return "      case $2 in\n" + arms + "      esac\n";
  };
  text += PerCommand("_gpushmctl_value", app, [&](const CLI::App& command) {
    const std::string values = WordsOf(command).values;
    return values.empty() ? "" : value_case(values);
  });
  text += value_case(global.values) + "}\n\n";
  text += PerCommand("_gpushmctl_operand", app, OperandArm) + "}\n";
  text += kTail;
  return text;
}

void AddCompletionCommand(CLI::App* app, Context* context) {
  CLI::App* completion =
      app->add_subcommand("completion", "Print the completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash")->required()->check(CLI::IsMember({"bash"}));
  completion->callback([app, context, shell] {  // The option that fills `shell` owns it, too.
    context->action = [app] { return PrintDone(BashCompletion(*app)); };
  });
}

}  // namespace gpushm::ctl
