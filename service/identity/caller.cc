// lint: untrusted-input
#include "service/identity/caller.h"

namespace eta {

std::string Names(Roles roles) {
  std::string names;
  for (const auto& [role, name] : kRoleNames) {
    if (!roles.Has(role)) continue;
    if (!names.empty()) names += ',';
    names += name;
  }
  return names;
}

}  // namespace eta
