// What the operator gave up, for the log at start.
#pragma once

#include <string>
#include <vector>

#include "service/server_options.h"

namespace eta {

struct InsecureChoice {
  std::string flag;
  std::string why;
};

// Of the listeners and of who may call; empty: nothing to warn of.
std::vector<InsecureChoice> InsecureChoices(const ServerOptions& options);

}  // namespace eta
