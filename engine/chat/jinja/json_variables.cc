// lint: untrusted-input, fuzz-covered
#include "engine/chat/jinja/json_variables.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json/json_check.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eta::jinja {
namespace {

// Events of nlohmann's parser, which keep the order of keys. False, which stops it, is for numbers
// that are too large alone: the text has been checked.
class Reader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit Reader(Heap& heap) : heap_(heap) {}

  bool null() { return Put(Value::None()); }
  bool boolean(bool flag) { return Put(Value::Boolean(flag)); }
  bool number_integer(number_integer_t number) { return Put(Value::Integer(number)); }
  bool number_unsigned(number_unsigned_t number) {
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    return Put(Value::Integer(static_cast<int64_t>(number)));
  }
  bool number_float(number_float_t number, const string_t& spelled) {
    // What does not fit an integer of the parser's comes as a float.
    if (spelled.find_first_of(".eE") == std::string::npos) return false;
    return Put(Value::Real(number));
  }
  bool string(string_t& text) { return Put(MakeText(heap_, std::move(text))); }
  bool binary(binary_t& /*bytes*/) { return false; }
  bool start_object(size_t /*size*/) { return Begin(); }
  bool key(string_t& name) {
    open_.back().keys.push_back(MakeText(heap_, std::move(name)));
    return true;
  }
  bool end_object() {
    Open open = std::move(open_.back());
    open_.pop_back();
    std::vector<std::pair<Value, Value>> entries;
    entries.reserve(open.keys.size());
    for (size_t at = 0; at < open.keys.size(); ++at) {
      entries.emplace_back(std::move(open.keys[at]), std::move(open.values[at]));
    }
    return Put(MakeDict(heap_, std::move(entries)));
  }
  bool start_array(size_t /*size*/) { return Begin(); }
  bool end_array() {
    std::vector<Value> items = std::move(open_.back().values);
    open_.pop_back();
    return Put(MakeList(heap_, std::move(items)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

  const Value& root() const { return root_; }

 private:
  struct Open {
    std::vector<Value> keys;  // of an object
    std::vector<Value> values;
  };

  bool Begin() {
    open_.emplace_back();
    return true;
  }
  bool Put(Value value) {
    (open_.empty() ? root_ : open_.back().values.emplace_back()) = std::move(value);
    return true;
  }

  Heap& heap_;
  std::vector<Open> open_;
  Value root_;
};

}  // namespace

absl::StatusOr<Value> ParseObject(Heap& heap, const std::string& what, std::string_view json,
                                  size_t max_bytes, size_t max_depth) {
  RETURN_IF_ERROR(CheckJson(what, json, {.max_bytes = max_bytes, .max_depth = max_depth}));
  Reader reader(heap);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return absl::UnimplementedError(what + ": integers of over 64 bits are not known here");
  }
  return reader.root();
}

absl::StatusOr<Variables> ParseVariables(Heap& heap, std::string_view json, size_t max_bytes,
                                         size_t max_depth) {
  ASSIGN_OR_RETURN(const auto root,
                   ParseObject(heap, "template variables", json, max_bytes, max_depth));
  Variables variables;
  for (const auto& [name, value] : root.dict().entries) {
    variables.emplace_back(name.text().bytes, value);
  }
  return variables;
}

}  // namespace eta::jinja
