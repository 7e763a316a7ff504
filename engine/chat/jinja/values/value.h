// Values of a template, as Python has them. Texts carry which of their bytes the template wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/byte_range.h"
#include "engine/chat/jinja/values/heap.h"

namespace eta::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBoolean,
  kInteger,
  kReal,
  kText,
  kSequence,
  kDict,
  kNamespace,
  kLoop,
  kFunction,
  kMacro,
};

// What values share. Depth: how many levels of values lie below; bounded, since destructors and
// everything that walks over a value go down that far.
struct Object {
  static constexpr uint32_t kMaxDepth = 64;

  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (heap != nullptr) heap->Release(held);
  }

  Heap* heap = nullptr;  // none for constants of a program
  size_t held = 0;       // bytes that are counted there
  uint32_t depth = 0;
};

struct Text;
struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Function;
struct Macro;

class Value {
 public:
  Value() = default;
  static Value None() { return Value(Kind::kNone); }
  static Value Boolean(bool flag) {
    Value value(Kind::kBoolean);
    value.integer_ = flag ? 1 : 0;
    return value;
  }
  static Value Integer(int64_t integer) {
    Value value(Kind::kInteger);
    value.integer_ = integer;
    return value;
  }
  static Value Real(double real) {
    Value value(Kind::kReal);
    value.real_ = real;
    return value;
  }
  // `why`: what an operation that it does not have says.
  static Value Undefined(Heap& heap, std::string why);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsUndefined() const { return kind_ == Kind::kUndefined; }
  bool IsText() const { return kind_ == Kind::kText; }
  bool IsSequence() const { return kind_ == Kind::kSequence; }
  bool IsDict() const { return kind_ == Kind::kDict; }
  // Python's bool is an int.
  bool IsIntegral() const { return kind_ == Kind::kInteger || kind_ == Kind::kBoolean; }
  bool IsNumber() const { return IsIntegral() || kind_ == Kind::kReal; }

  int64_t integer() const { return integer_; }  // of an integer or a boolean
  double real() const { return kind_ == Kind::kReal ? real_ : static_cast<double>(integer_); }
  const Text& text() const;
  const Sequence& sequence() const;
  const Dict& dict() const;
  std::string why() const;  // of an undefined value
  const std::shared_ptr<Object>& object() const { return object_; }
  template <typename T>
  T& As() const {
    return static_cast<T&>(*object_);
  }
  uint32_t depth() const { return object_ == nullptr ? 0 : object_->depth; }
  // Python's truth of a value.
  bool Truth() const;
  // "str", "list" ...: Python's name of its type.
  std::string_view TypeName() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

// Well-formed UTF-8.
struct Text : Object {
  std::string bytes;
  std::vector<ByteRange> control;  // what the template wrote: sorted, disjoint, none empty
  bool safe = false;               // the filter `safe` made it: Python's Markup
};

struct Sequence : Object {
  enum class Form : uint8_t { kList, kTuple, kRange, kView, kIterator };
  Form form = Form::kList;
  std::vector<Value> items;
  std::string failure;  // of an iterator: what asking for its items says
  size_t position = 0;  // of an iterator, how many items are gone
  bool HasLength() const { return form != Form::kIterator; }
  bool HasItems() const {
    return form == Form::kList || form == Form::kTuple || form == Form::kRange;
  }
};

struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;  // in the order of insertion, keys once each
  // nullptr where it is not there. Linear: dicts of chats are small, and looking is work that
  // counts.
  const Value* Find(std::string_view key) const;
};

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

// The variable `loop`.
struct Loop : Object {
  Value items;        // a sequence
  size_t index0 = 0;  // of the item that the body runs for
};

struct Native;  // natives/native.h

// A function of the environment, or a method bound to what it is called on.
struct Function : Object {
  const Native* native = nullptr;
  Value receiver;
};

struct Scope;
struct Macro : Object {
  uint32_t index = 0;  // in the program
  std::weak_ptr<Scope> closure;
};

// Makes values that the heap counts.
Value MakeText(Heap& heap, std::string bytes, std::vector<ByteRange> control = {});
// All of it by the template.
Value MakeOwnText(Heap& heap, std::string bytes);
Value MakeSequence(Heap& heap, Sequence::Form form, std::vector<Value> items);
inline Value MakeList(Heap& heap, std::vector<Value> items) {
  return MakeSequence(heap, Sequence::Form::kList, std::move(items));
}
inline Value MakeTuple(Heap& heap, std::vector<Value> items) {
  return MakeSequence(heap, Sequence::Form::kTuple, std::move(items));
}
// What is asked for one after the other, once.
inline Value MakeIterator(Heap& heap, std::vector<Value> items) {
  return MakeSequence(heap, Sequence::Form::kIterator, std::move(items));
}
Value MakeDict(Heap& heap, std::vector<std::pair<Value, Value>> entries);

// An object of one of the other kinds that refers to values of at most `depth`.
template <typename T>
std::shared_ptr<T> MakeObject(Heap& heap, size_t more_bytes, uint32_t depth) {
  auto object = std::make_shared<T>();
  object->depth = depth;
  if (depth > Object::kMaxDepth) heap.RefuseDepth();
  if (heap.Hold(sizeof(T) + more_bytes)) {
    object->heap = &heap;
    object->held = sizeof(T) + more_bytes;
  }
  heap.Work(1);
  return object;
}

}  // namespace eta::jinja
