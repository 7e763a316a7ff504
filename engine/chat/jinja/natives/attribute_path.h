// What filters are told to look at: "name", "a.b.0", or a number.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

class AttributePath {
 public:
  // No path for an absent argument or None: then the item itself.
  static AttributePath Parse(Heap& heap, const Value& attribute);
  // `other` takes the place of an undefined value, unless it is undefined or None itself.
  absl::StatusOr<Value> Of(Heap& heap, const Value& item, const Value& other = Value()) const;

 private:
  std::vector<Value> parts_;
};

}  // namespace eta::jinja
