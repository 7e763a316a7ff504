#include "service/etactl/attention_options.h"

#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace eta::ctl {
namespace {

template <typename Number>
CLI::Option* Add(CLI::App* command, const AttentionField& field, std::optional<Number>& value) {
  return command->add_option(absl::StrCat("--", field.name), value, field.help);
}

CLI::Option* Add(CLI::App* command, const AttentionField& field, std::optional<bool>& value) {
  const std::string name = absl::StrCat("--", field.name);
  if (field.IsYesOrNo()) return command->add_option(name, value, field.help)->type_name("BOOL");
  const std::string yes = field.yes;
  return command
      ->add_option_function<std::string>(
          name, [yes, &value](const std::string& text) { value = text == yes; }, field.help)
      ->check(CLI::IsMember({std::string(field.no), yes}));
}

}  // namespace

void AddAttentionSettings(CLI::App* command, const std::string& group, bool of_profiles,
                          AttentionSettings* settings) {
  ForEachSetting([&](const AttentionField& field, auto member) {
    if (of_profiles && !field.in_profile) return;
    Add(command, field, settings->*member)->group(group);
  });
}

}  // namespace eta::ctl
