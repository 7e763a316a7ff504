// lint: untrusted-input, fuzz-covered
#include "engine/base/json/json_check.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/utf8.h"
#include "nlohmann/json.hpp"

namespace eta {
namespace {

using Json = nlohmann::json;

class StructureCheck : public nlohmann::json_sax<Json> {
 public:
  explicit StructureCheck(size_t max_depth) : max_depth_(max_depth) {}

  const std::string& error() const { return error_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Fail("is not JSON"); }
  bool start_object(size_t) override { return Open(); }
  bool key(string_t& key) override {
    return keys_.back().insert(key).second || Fail("has a key twice in one object");
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Value() && Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not JSON at byte ", position));
  }

 private:
  bool Fail(const std::string& error) {
    error_ = error;
    return false;
  }
  bool Value() { return !keys_.empty() || Fail("is not a JSON object"); }
  bool Open() {
    if (keys_.size() == max_depth_)
      return Fail(absl::StrCat("is nested over ", max_depth_, " deep"));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  const size_t max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the open objects and arrays
  std::string error_;
};

}  // namespace

absl::Status CheckJson(const std::string& what, std::string_view text, const JsonLimits& limits) {
  const auto invalid = [&what](const std::string& sentence) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", sentence));
  };
  if (text.size() > limits.max_bytes) {
    return invalid(absl::StrCat("is over ", limits.max_bytes, " bytes"));
  }
  if (const auto offset = FirstInvalidUtf8(text)) {
    return invalid(absl::StrCat("is not UTF-8 at byte ", *offset));
  }
  // The parser takes a NUL for the end of its input and would not see what follows.
  if (text.find('\0') != std::string_view::npos) return invalid("holds a NUL byte");
  StructureCheck check(limits.max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &check)) return invalid(check.error());
  return absl::OkStatus();
}

}  // namespace eta
