// Answers of unary calls on their way to clients: their bytes, of each tenant and together,
// bounded.
//
// A call gives its place among its tenant's calls back before its answer is sent, so that whoever
// has the answer may call again at once; the bytes are held until the client has taken them, which
// is its own choice. Whoever leaves too many of them gets no more answers until some were read or
// their calls were cut off. Thread-safe; must outlive its holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/tenant.h"

namespace eta {

struct UnreadFigures {
  int64_t bytes = 0;
  int64_t cut_off = 0;  // answers that were not taken in time
};

class UnreadAnswers {
 public:
  // Counted for each answer beside its own bytes: about what a call costs that waits.
  static constexpr size_t kCallBytes = size_t{16} << 10;
  // Of the bound that one tenant may have; and where the bound is reached.
  static constexpr size_t kTenantPart = 4;
  static constexpr size_t kTenantPartOfFull = 64;

  // At the end of its life an answer counts no more. May be empty.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept {
      std::swap(answers_, other.answers_);
      std::swap(tenant_, other.tenant_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Hold() {
      if (answers_ != nullptr) answers_->Remove(tenant_, bytes_);
    }

   private:
    friend class UnreadAnswers;
    Hold(UnreadAnswers& answers, std::string tenant, size_t bytes)
        : answers_(&answers), tenant_(std::move(tenant)), bytes_(bytes) {}

    UnreadAnswers* answers_ = nullptr;
    std::string tenant_;
    size_t bytes_ = 0;
  };

  explicit UnreadAnswers(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Before the work for another answer: RESOURCE_EXHAUSTED (ANSWERS_UNREAD), if the tenant has its
  // part unread. Who reads is served whatever others leave unread.
  absl::Status Check(const Tenant& tenant) const;
  // Whatever the bound: what is made by then is answered.
  Hold Add(const Tenant& tenant, size_t bytes);
  void CountCutOff();

  UnreadFigures Figures() const;

 private:
  void Remove(const std::string& tenant, size_t bytes);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<std::string, size_t, std::less<>> tenants_;  // bytes; none of 0
  size_t bytes_ = 0;
  int64_t cut_off_ = 0;
};

}  // namespace eta
