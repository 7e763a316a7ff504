// A tenant, whose profiles and limits are meant. It is made in one place, from a credential or an
// operator's folder. Every function of the profile store asks for one: a query without a tenant
// does not compile.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace eta {

class Tenant {
 public:
  static constexpr size_t kMaxBytes = 255;

  // 1 to 255 printable ASCII characters without spaces; INVALID_ARGUMENT otherwise.
  static absl::StatusOr<Tenant> Parse(std::string_view id);

  const std::string& id() const { return id_; }
  friend auto operator<=>(const Tenant&, const Tenant&) = default;

 private:
  explicit Tenant(std::string id) : id_(std::move(id)) {}

  std::string id_;
};

}  // namespace eta
