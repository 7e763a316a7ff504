// SHA-256 of bytes that arrive in pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct evp_md_ctx_st;

namespace eta {

class Sha256 {
 public:
  Sha256();
  void Update(std::string_view bytes);
  // 64 lower-case hexadecimal digits; ends the hash. INTERNAL if the library refuses.
  absl::StatusOr<std::string> Hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
  bool ok_;
};

absl::StatusOr<std::string> Sha256Hex(std::string_view bytes);

}  // namespace eta
