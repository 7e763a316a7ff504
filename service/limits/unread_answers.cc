#include "service/limits/unread_answers.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kRetry{1000};

}  // namespace

absl::Status UnreadAnswers::Check(const Tenant& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(tenant.id());
  if (found == tenants_.end()) return absl::OkStatus();
  const size_t limit = max_bytes_ / (bytes_ < max_bytes_ ? kTenantPart : kTenantPartOfFull);
  if (found->second < limit) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      "too many bytes of answers to the tenant's calls have not been read",
      {.reason = "ANSWERS_UNREAD",
       .metadata = {{"quota", "max_unread_answer_bytes"}, {"limit", absl::StrCat(limit)}},
       .retry_after = kRetry});
}

UnreadAnswers::Hold UnreadAnswers::Add(const Tenant& tenant, size_t bytes) {
  bytes += kCallBytes;
  Hold hold(*this, tenant.id(), 0);
  const std::lock_guard lock(mutex_);
  tenants_[tenant.id()] += bytes;
  bytes_ += bytes;
  hold.bytes_ = bytes;
  return hold;
}

void UnreadAnswers::Remove(const std::string& tenant, size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  found->second -= bytes;
  if (found->second == 0) tenants_.erase(found);
}

void UnreadAnswers::CountCutOff() {
  const std::lock_guard lock(mutex_);
  ++cut_off_;
}

UnreadFigures UnreadAnswers::Figures() const {
  const std::lock_guard lock(mutex_);
  return {.bytes = static_cast<int64_t>(bytes_), .cut_off = cut_off_};
}

}  // namespace eta
