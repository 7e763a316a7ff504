#include "service/limits/tenant_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr char kFlag[] = "--tenants";

}  // namespace

TenantLimits::TenantLimits() : table_(std::make_shared<const LimitTable>()) {}

absl::StatusOr<std::unique_ptr<TenantLimits>> TenantLimits::Open(const std::string& path,
                                                                 WatchedFiles::Report report) {
  auto limits = std::make_unique<TenantLimits>();
  const auto apply = [limits = limits.get()](const std::vector<std::string>& contents) {
    const absl::Status applied = limits->Apply(contents.front());
    if (applied.ok()) return applied;
    return absl::InvalidArgumentError(absl::StrCat(kFlag, ": ", applied.message()));
  };
  ASSIGN_OR_RETURN(limits->file_, WatchedFiles::Open({.files = {{.name = kFlag, .path = path}},
                                                      .max_bytes = kMaxLimitsBytes},
                                                     apply, std::move(report)));
  return limits;
}

std::shared_ptr<const LimitTable> TenantLimits::table() const {
  const MutexLock lock(mutex_);
  return table_;
}

TenantLimit TenantLimits::Of(const Tenant& tenant) const {
  const std::shared_ptr<const LimitTable> table = this->table();
  const auto found = table->named.find(tenant.id());
  return found == table->named.end() ? table->others : found->second;
}

bool TenantLimits::Names(const Tenant& tenant) const {
  return table()->named.contains(tenant.id());
}

std::vector<std::string> TenantLimits::Named() const {
  std::vector<std::string> names;
  for (const auto& [name, limit] : table()->named) names.push_back(name);
  return names;
}

absl::Status TenantLimits::Apply(const std::string& text) {
  ASSIGN_OR_RETURN(LimitTable read, ParseLimits(text));
  auto table = std::make_shared<const LimitTable>(std::move(read));
  const MutexLock lock(mutex_);
  table_ = std::move(table);
  return absl::OkStatus();
}

void TenantLimits::Poll() {
  if (file_ != nullptr) file_->Poll();
}

}  // namespace eta
