// The options that ask something of attention, one for each of AttentionSettings. Values out of
// range are left to the server to refuse.
#pragma once

#include <string>

#include "engine/request/attention_settings.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eta::ctl {

// Adds them to `command`, in a group of its help; parsing it fills `settings`, which must outlive
// it. `of_profiles`: those alone that a profile says.
void AddAttentionSettings(CLI::App* command, const std::string& group, bool of_profiles,
                          AttentionSettings* settings);

}  // namespace eta::ctl
