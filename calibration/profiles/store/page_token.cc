// lint: untrusted-input, fuzz-covered
#include "calibration/profiles/store/page_token.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kTagBytes = 16;

// The tag tells tokens apart. It keeps no secret, since a page shows a tenant only its own
// profiles.
std::string Tag(const Tenant& tenant, std::string_view listing, std::string_view last) {
  std::string bytes = tenant.id();
  bytes.append("\n").append(listing).append("\n").append(last);
  const auto digest = Sha256Hex(bytes);
  return digest.ok() ? digest->substr(0, kTagBytes) : std::string();
}

absl::Status WrongToken() {
  return InvalidField("page_token", "is not from the page before");
}

// The last key of the page before; empty for the first page.
absl::StatusOr<std::string> ReadPage(const Tenant& tenant, std::string_view listing,
                                     const ProfilePage& page) {
  if (page.size < 0) return InvalidField("page_size", "must not be negative");
  if (page.token.empty()) return std::string();
  std::string decoded;
  if (page.token.size() <= kMaxTokenBytes &&
      absl::WebSafeBase64Unescape(std::string(page.token), &decoded) &&
      decoded.size() > kTagBytes) {
    std::string last = decoded.substr(kTagBytes);
    if (MakePageToken(tenant, listing, last) == page.token) return last;
  }
  return WrongToken();
}

}  // namespace

std::string MakePageToken(const Tenant& tenant, std::string_view listing, std::string_view last) {
  return absl::WebSafeBase64Escape(Tag(tenant, listing, last).append(last));
}

absl::StatusOr<std::string> ReadNamePage(const Tenant& tenant, const ProfilePage& page) {
  return ReadPage(tenant, "", page);
}

absl::StatusOr<int64_t> ReadVersionPage(const Tenant& tenant, const std::string& name,
                                        const ProfilePage& page) {
  ASSIGN_OR_RETURN(const std::string last, ReadPage(tenant, name, page));
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!last.empty() && !absl::SimpleAtoi(last, &before)) return WrongToken();
  return before;
}

}  // namespace eta
