#include "engine/chat/jinja/values/operators.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/utf8_characters.h"
#include "engine/chat/jinja/values/text_builder.h"

namespace eta::jinja {
namespace {

// Exact for every int64_t.
long double Numeric(const Value& value) {
  return value.Is(Kind::kReal) ? static_cast<long double>(value.real())
                               : static_cast<long double>(value.integer());
}

std::string Types(const Value& a, const Value& b) {
  return "'" + std::string(a.TypeName()) + "' and '" + std::string(b.TypeName()) + "'";
}

// Of values without parts.
bool SimplyEqual(Heap& heap, const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return Numeric(a) == Numeric(b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      heap.WorkOnBytes(a.text().bytes.size());
      return a.text().bytes == b.text().bytes;
    default:
      return a.object() == b.object();
  }
}

bool HaveParts(const Value& a, const Value& b) {
  if (a.IsDict() && b.IsDict()) return true;
  return a.IsSequence() && b.IsSequence() && a.sequence().form == b.sequence().form &&
         a.sequence().HasItems();
}

absl::StatusOr<bool> Contains(Heap& heap, const Value& container, const Value& item) {
  if (container.IsText()) {
    if (!item.IsText()) {
      return absl::InvalidArgumentError("'in <string>' requires string as left operand, not " +
                                        std::string(item.TypeName()));
    }
    heap.WorkOnBytes(container.text().bytes.size());
    return container.text().bytes.find(item.text().bytes) != std::string::npos;
  }
  if (container.IsDict()) {
    ASSIGN_OR_RETURN(const auto found, FindKey(heap, container.dict(), item));
    return found != nullptr;
  }
  ASSIGN_OR_RETURN(const auto items, Iterated(heap, container));
  for (const Value& candidate : items.sequence().items) {
    if (heap.exhausted()) break;
    if (Equal(heap, candidate, item)) return true;
  }
  return false;
}

absl::Status CheckKey(const Value& key) {
  if (key.IsText() || key.IsNumber() || key.Is(Kind::kNone) || key.IsUndefined()) {
    return absl::OkStatus();
  }
  if (key.IsSequence() && key.sequence().form == Sequence::Form::kTuple) {
    return absl::UnimplementedError("tuples as keys are not known here");
  }
  return absl::InvalidArgumentError("unhashable type: '" + std::string(key.TypeName()) + "'");
}

}  // namespace

bool Equal(Heap& heap, const Value& first, const Value& second) {
  if (!HaveParts(first, second)) {
    heap.Work(1);
    return SimplyEqual(heap, first, second);
  }
  std::vector<std::pair<const Value*, const Value*>> pairs = {{&first, &second}};
  while (!pairs.empty()) {
    const auto [a, b] = pairs.back();
    pairs.pop_back();
    heap.Work(1);
    if (heap.exhausted()) return false;
    if (!HaveParts(*a, *b)) {
      if (!SimplyEqual(heap, *a, *b)) return false;
    } else if (a->IsDict()) {
      if (a->dict().entries.size() != b->dict().entries.size()) return false;
      for (const auto& [key, value] : a->dict().entries) {
        const auto found = FindKey(heap, b->dict(), key);
        if (!found.ok() || *found == nullptr) return false;
        pairs.emplace_back(&value, *found);
      }
    } else {
      const std::vector<Value>& left = a->sequence().items;
      const std::vector<Value>& right = b->sequence().items;
      if (left.size() != right.size()) return false;
      for (size_t at = left.size(); at > 0; --at) pairs.emplace_back(&left[at - 1], &right[at - 1]);
    }
  }
  return true;
}

absl::StatusOr<bool> Less(Heap& heap, const Value& first, const Value& second) {
  const Value* a = &first;
  const Value* b = &second;
  while (true) {
    heap.Work(1);
    if (a->IsNumber() && b->IsNumber()) return Numeric(*a) < Numeric(*b);
    if (a->IsText() && b->IsText()) {
      heap.WorkOnBytes(std::min(a->text().bytes.size(), b->text().bytes.size()));
      return a->text().bytes < b->text().bytes;  // as by characters: that is UTF-8's order
    }
    if (!HaveParts(*a, *b) || a->IsDict() || a->sequence().form == Sequence::Form::kRange) {
      return absl::InvalidArgumentError("no order between " + Types(*a, *b));
    }
    const std::vector<Value>& left = a->sequence().items;
    const std::vector<Value>& right = b->sequence().items;
    size_t at = 0;
    while (at < left.size() && at < right.size() && Equal(heap, left[at], right[at])) ++at;
    if (at == left.size() || at == right.size()) return left.size() < right.size();
    a = &left[at];
    b = &right[at];
  }
}

absl::StatusOr<bool> Compare(Heap& heap, TokenKind op, const Value& a, const Value& b) {
  switch (op) {
    case TokenKind::kEq:
      return Equal(heap, a, b);
    case TokenKind::kNe:
      return !Equal(heap, a, b);
    case TokenKind::kIn:
      return Contains(heap, b, a);
    case TokenKind::kNotIn: {
      ASSIGN_OR_RETURN(const auto contained, Contains(heap, b, a));
      return !contained;
    }
    default:
      break;
  }
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) return absl::InvalidArgumentError(value->why());
  }
  if (op == TokenKind::kLess) return Less(heap, a, b);
  if (op == TokenKind::kGreater) return Less(heap, b, a);
  // Not the opposite of the other: neither holds for a number that is none.
  ASSIGN_OR_RETURN(const auto less, op == TokenKind::kLessEq ? Less(heap, a, b) : Less(heap, b, a));
  return less || Equal(heap, a, b);
}

absl::StatusOr<const Value*> FindKey(Heap& heap, const Dict& dict, const Value& key) {
  RETURN_IF_ERROR(CheckKey(key));
  heap.Work(1 + dict.entries.size() / 16);
  if (key.IsText()) return dict.Find(key.text().bytes);
  for (const auto& [candidate, value] : dict.entries) {
    if (SimplyEqual(heap, candidate, key)) return &value;
  }
  return nullptr;
}

absl::Status PutKey(Heap& heap, std::vector<std::pair<Value, Value>>& entries, const Value& key,
                    Value value) {
  RETURN_IF_ERROR(CheckKey(key));
  heap.Work(1 + entries.size() / 16);
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& candidate) {
    return SimplyEqual(heap, candidate.first, key);
  });
  if (entry != entries.end()) {
    entry->second = std::move(value);
  } else {
    entries.emplace_back(key, std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Iterated(Heap& heap, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kSequence: {
      auto& sequence = value.As<Sequence>();
      if (sequence.HasLength()) return value;
      if (!sequence.failure.empty()) return absl::InvalidArgumentError(sequence.failure);
      const size_t begin = std::exchange(sequence.position, sequence.items.size());
      items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(begin),
                   sequence.items.end());
      break;
    }
    case Kind::kDict:
      for (const auto& [key, entry] : value.dict().entries) items.push_back(key);
      break;
    case Kind::kText: {
      const Text& text = value.text();
      for (size_t at = 0; at < text.bytes.size() && !heap.exhausted();) {
        const size_t end = at + Utf8Length(text.bytes[at]);
        items.push_back(SubText(heap, text, at, end));
        at = end;
      }
      break;
    }
    case Kind::kUndefined:
      break;
    default:
      return absl::InvalidArgumentError("'" + std::string(value.TypeName()) +
                                        "' object is not iterable");
  }
  return MakeList(heap, std::move(items));
}

}  // namespace eta::jinja
