#include "engine/chat/jinja/values/value.h"

#include <algorithm>

namespace eta::jinja {
namespace {

uint32_t Above(uint32_t depth) {
  return depth + 1;
}

}  // namespace

absl::Status Heap::status() const {
  if (full_) {
    return absl::ResourceExhaustedError("the template holds more values than the limit of " +
                                        std::to_string(limits_.live_bytes >> 20) + " MiB");
  }
  if (deep_) {
    return absl::ResourceExhaustedError("the template nests values over " +
                                        std::to_string(Object::kMaxDepth) + " deep");
  }
  if (steps_ > limits_.steps) {
    return absl::ResourceExhaustedError("the template takes more than the limit of " +
                                        std::to_string(limits_.steps) + " steps");
  }
  return absl::OkStatus();
}

void Heap::EmptyNamespaces() {
  for (const std::shared_ptr<Namespace>& space : namespaces_) space->attributes.clear();
  namespaces_.clear();
}

Value Value::Undefined(Heap& heap, std::string why) {
  auto text = MakeObject<Text>(heap, why.capacity(), 0);
  text->bytes = std::move(why);
  return Value(Kind::kUndefined, std::move(text));
}

const Text& Value::text() const {
  return As<Text>();
}
const Sequence& Value::sequence() const {
  return As<Sequence>();
}
const Dict& Value::dict() const {
  return As<Dict>();
}

std::string Value::why() const {
  return object_ == nullptr ? "a value is undefined" : As<Text>().bytes;
}

bool Value::Truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBoolean:
    case Kind::kInteger:
      return integer_ != 0;
    case Kind::kReal:
      return real_ != 0;
    case Kind::kText:
      return !text().bytes.empty();
    case Kind::kSequence:
      return !sequence().HasLength() || !sequence().items.empty();
    case Kind::kDict:
      return !dict().entries.empty();
    default:
      return true;
  }
}

std::string_view Value::TypeName() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBoolean:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kReal:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kSequence:
      switch (sequence().form) {
        case Sequence::Form::kList:
          return "list";
        case Sequence::Form::kTuple:
          return "tuple";
        case Sequence::Form::kRange:
          return "range";
        case Sequence::Form::kView:
          return "dict view";
        case Sequence::Form::kIterator:
          return "generator";
      }
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "Macro";
  }
  return "object";
}

const Value* Dict::Find(std::string_view key) const {
  const auto entry = std::find_if(entries.begin(), entries.end(), [key](const auto& candidate) {
    return candidate.first.IsText() && candidate.first.text().bytes == key;
  });
  return entry == entries.end() ? nullptr : &entry->second;
}

Value MakeText(Heap& heap, std::string bytes, std::vector<ByteRange> control) {
  heap.WorkOnBytes(bytes.size());
  auto text = MakeObject<Text>(heap, bytes.capacity() + control.capacity() * sizeof(ByteRange), 0);
  text->bytes = std::move(bytes);
  text->control = std::move(control);
  return Value(Kind::kText, std::move(text));
}

Value MakeOwnText(Heap& heap, std::string bytes) {
  std::vector<ByteRange> control;
  if (!bytes.empty()) control.push_back({0, bytes.size()});
  return MakeText(heap, std::move(bytes), std::move(control));
}

Value MakeSequence(Heap& heap, Sequence::Form form, std::vector<Value> items) {
  uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, Above(item.depth()));
  heap.Work(items.size() / 8);
  auto sequence = MakeObject<Sequence>(heap, items.capacity() * sizeof(Value), depth);
  sequence->form = form;
  sequence->items = std::move(items);
  return Value(Kind::kSequence, std::move(sequence));
}

Value MakeDict(Heap& heap, std::vector<std::pair<Value, Value>> entries) {
  uint32_t depth = 0;
  for (const auto& [key, value] : entries) {
    depth = std::max({depth, Above(key.depth()), Above(value.depth())});
  }
  heap.Work(entries.size() / 8);
  auto dict = MakeObject<Dict>(heap, entries.capacity() * 2 * sizeof(Value), depth);
  dict->entries = std::move(entries);
  return Value(Kind::kDict, std::move(dict));
}

}  // namespace eta::jinja
