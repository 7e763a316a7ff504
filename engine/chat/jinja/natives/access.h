// What can be reached from a value: attributes, items, slices. Nothing of Python's own objects.
#pragma once

#include "absl/status/statusor.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// value.name: a method or what the value holds under that name, else undefined.
absl::StatusOr<Value> Attribute(Heap& heap, const Value& value, const Value& name);
// value[key]: an item, else an attribute, else undefined.
absl::StatusOr<Value> Item(Heap& heap, const Value& value, const Value& key);
// value[start:stop:step], each an int or None.
absl::StatusOr<Value> Slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
                            const Value& step);
// len(value)
absl::StatusOr<int64_t> Length(Heap& heap, const Value& value);

}  // namespace eta::jinja
