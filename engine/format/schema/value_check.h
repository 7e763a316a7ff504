// Whether a value is what a node of a schema asks for, as JSON Schema 2020-12 has it. Formats are
// annotations to it.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/format/schema/schema_model.h"

namespace eta::schema {

// The types that a value of this kind has; `text` is how a number is written.
Types TypesOf(JsonKind kind, std::string_view text);

// Not thread-safe. `model` has no node that holds itself without an end.
class ValueCheck {
 public:
  ValueCheck(const SchemaModel& model, const JsonText& values) : model_(model), values_(values) {}

  // Without recursion. Time: each node is tried with each value at most once.
  bool Accepts(uint32_t node, uint32_t value);

  // Of the newest value that was not accepted: which keyword it, or what it holds, breaks.
  std::string_view broken_keyword() const { return broken_keyword_; }
  uint32_t broken_value() const { return broken_value_; }

 private:
  enum class Way : uint8_t { kAll, kAny, kOne };
  struct Goal {
    uint32_t node = 0;
    uint32_t value = 0;
    bool of_key = false;  // it is the key of the value
    Way way = Way::kAll;  // not kAll: of the node's branches
  };
  // Goals that are tried one after the other.
  struct Frame {
    Goal goal;
    size_t first = 0;  // of its goals
    size_t next = 0;
    size_t end = 0;
    size_t held = 0;  // so many of them
    size_t tried = 0;
  };

  bool Breaks(std::string_view keyword, const Goal& goal);
  void Begin(const Goal& goal);
  void Count(bool holds);
  // What the node itself asks, apart from its goals.
  bool Fits(const SchemaNode& node, const Goal& goal);
  bool FitsNumber(const SchemaNode& node, const Goal& goal);
  bool FitsString(const SchemaNode& node, const Goal& goal);
  bool FitsArray(const SchemaNode& node, const Goal& goal);
  bool FitsObject(const SchemaNode& node, const Goal& goal);
  bool IsAmong(uint32_t list, const Goal& goal) const;

  const SchemaModel& model_;
  const JsonText& values_;
  std::vector<Frame> frames_;
  std::vector<Goal> goals_;
  size_t choices_ = 0;                        // open frames of which not all goals need hold
  std::unordered_map<uint64_t, bool> known_;  // of node and value, where they may be tried again
  bool result_ = false;
  std::string_view broken_keyword_;
  uint32_t broken_value_ = 0;
};

}  // namespace eta::schema
