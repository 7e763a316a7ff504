// Python's operators on values.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/compile/token.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

// a == b; never fails.
bool Equal(Heap& heap, const Value& a, const Value& b);
// Whether a < b, in the sense of sorted(); INVALID_ARGUMENT for types that have no order.
absl::StatusOr<bool> Less(Heap& heap, const Value& a, const Value& b);
// ==, !=, <, <=, >, >=, in, not in.
absl::StatusOr<bool> Compare(Heap& heap, TokenKind op, const Value& a, const Value& b);
// + - * / // %. UNIMPLEMENTED: "%" of a str, "*" of a list, "//" and "%" of a float, integers of
// over 64 bits.
absl::StatusOr<Value> Binary(Heap& heap, TokenKind op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& value, bool negative);

// The value of a key; nullptr where there is none. UNIMPLEMENTED for a tuple as key;
// INVALID_ARGUMENT for what cannot be one.
absl::StatusOr<const Value*> FindKey(Heap& heap, const Dict& dict, const Value& key);
// Puts an entry at the end, or its value in place of an older one of that key.
absl::Status PutKey(Heap& heap, std::vector<std::pair<Value, Value>>& entries, const Value& key,
                    Value value);

// The sequence itself, or a list of what iteration gives: keys of a dict, characters of a text, the
// rest of an iterator, which is then at its end.
absl::StatusOr<Value> Iterated(Heap& heap, const Value& value);

}  // namespace eta::jinja
