// Strict reading of JSON objects: every field is asked for by name, and what is left is an error.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eta {

// A tree that goes without allocating. The library's own destructor allocates where there are
// children, and ends the process where that fails.
class JsonTree {
 public:
  explicit JsonTree(nlohmann::json root) : root_(std::move(root)) {}
  JsonTree(JsonTree&&) = default;
  ~JsonTree();

  const nlohmann::json& root() const { return root_; }

 private:
  nlohmann::json root_;
};

// One JSON object in UTF-8 within the limits; INVALID_ARGUMENT, naming a key that is there twice.
absl::StatusOr<JsonTree> ParseStrictJson(const std::string& what, std::string_view text,
                                         size_t max_bytes, size_t max_depth);

// The fields of one object. The first error stays; reading goes on, so check status() at the end.
class JsonFields {
 public:
  // `prefix` is what errors put before a field's name: "evidence." or "".
  JsonFields(const nlohmann::json& object, std::string prefix);

  // Whether it is there: for fields that may be left out.
  bool Has(const std::string& field) const { return object_.contains(field); }
  int64_t Integer(const std::string& field, int64_t low, int64_t high);
  double Number(const std::string& field);
  bool Boolean(const std::string& field);
  std::string Text(const std::string& field);
  // Of the wanted type, else an error and an empty value of that type.
  const nlohmann::json& Object(const std::string& field);
  const nlohmann::json& Array(const std::string& field);
  // Null and absent differ: the second is an error.
  bool IsNull(const std::string& field);

  void Fail(const std::string& field, const std::string& sentence);
  const absl::Status& status() const { return status_; }
  // OK, the first error, or that a field is there which nobody asked for.
  absl::Status Finish() const;

 private:
  const nlohmann::json& Read(const std::string& field);

  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string> read_;
  absl::Status status_;
};

}  // namespace eta
