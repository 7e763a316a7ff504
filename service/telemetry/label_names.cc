// lint: fuzz-covered
#include "service/telemetry/label_names.h"

namespace eta {

LabelNames::LabelNames(const std::vector<std::string>& listed, size_t limit)
    : open_(listed.empty()), limit_(limit), names_(listed.begin(), listed.end()) {
  names_.erase(std::string(kNone));
  names_.erase(std::string(kOther));
}

std::string_view LabelNames::Admit(std::string_view name) {
  const bool ours = name.empty() || name == kNone || name == kOther;
  if (open_ && !ours && names_.size() < limit_ && !names_.contains(name)) names_.emplace(name);
  return Find(name);
}

std::string_view LabelNames::Find(std::string_view name) const {
  if (name.empty()) return kNone;
  const auto found = names_.find(name);
  return found == names_.end() ? kOther : std::string_view(*found);
}

}  // namespace eta
