// The operator's insecure choices, for the log at start.
#pragma once

#include <string>
#include <vector>

#include "service/options/flags.h"

namespace eta {

struct InsecureChoice {
  std::string flag;
  std::string why;
};

// One entry for each choice that opens up the server or its process; empty: nothing to warn of.
// `filtered`: the filter of system calls is in force.
std::vector<InsecureChoice> InsecureChoices(const Flags& flags, bool filtered);

}  // namespace eta
