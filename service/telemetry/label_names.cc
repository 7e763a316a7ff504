// lint: fuzz-covered
#include "service/telemetry/label_names.h"

#include <algorithm>

namespace eta {
namespace {

bool Reserved(std::string_view name) {
  return name.empty() || name == Label::kNone || name == Label::kOther;
}

}  // namespace

const Label& Label::None() {
  static const Label label(kNone);
  return label;
}

const Label& Label::Other() {
  static const Label label(kOther);
  return label;
}

const Label& Label::Gone() {
  static const Label label("");  // no name is empty
  return label;
}

LabelNames::LabelNames(const std::vector<std::string>& listed, size_t limit)
    : open_(listed.empty()), limit_(limit) {
  for (const std::string& name : listed) {
    if (!Reserved(name)) names_.try_emplace(name, Entry{.label = Label(name), .used = {}});
  }
}

Label LabelNames::Use(std::string_view name, Clock::time_point now) {
  const auto found = names_.find(name);
  if (found != names_.end()) {
    found->second.used = std::max(found->second.used, now);
    return found->second.label;
  }
  if (!MayHaveLabel(name) || names_.size() >= limit_) return Find(name);
  oldest_ = std::min(oldest_, now);
  return names_.emplace(name, Entry{.label = Label(name), .used = now}).first->second.label;
}

Label LabelNames::Find(std::string_view name) const {
  if (name.empty()) return Label::None();
  const auto found = names_.find(name);
  return found == names_.end() ? Label::Other() : found->second.label;
}

bool LabelNames::MayHaveLabel(std::string_view name) const {
  return open_ && limit_ > 0 && !Reserved(name);
}

bool LabelNames::Lacks(std::string_view name, Clock::time_point before) const {
  return oldest_ < before && MayHaveLabel(name) && !names_.contains(name);
}

std::optional<Label> LabelNames::DropIdle(Clock::time_point before) {
  const auto oldest =
      std::min_element(names_.begin(), names_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (!open_ || oldest == names_.end()) return std::nullopt;
  oldest_ = oldest->second.used;
  if (oldest_ >= before) return std::nullopt;
  return names_.extract(oldest).mapped().label;
}

}  // namespace eta
