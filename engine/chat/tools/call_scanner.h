// What stands where calls may: reads on until it is calls, or cannot become any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/tools/answer_form.h"
#include "engine/chat/tools/call_object.h"
#include "engine/chat/tools/json_cursor.h"

namespace eta {

class CallScanner {
 public:
  using State = CallObject::State;

  struct Call {
    std::string name;       // a tool's; empty: it is not known yet
    std::string arguments;  // as far as they have come
  };

  // `form` and `tools` outlive it. `max_calls`: one more is none.
  CallScanner(const AnswerForm& form, std::span<const std::string> tools, size_t max_calls)
      : form_(form), tools_(tools), max_calls_(max_calls) {}

  // `marked` (marked_text.h) begins behind the mark of a call, of CallSyntax::kBare where the
  // answer does. It may only grow from one time to the next. Bare calls are never done before the
  // end.
  State Scan(std::string_view marked);
  // Whether `marked`, all that comes, is calls.
  bool EndsWell(std::string_view marked) const;
  // Of a list that is not at its end yet: how many calls of it are, and where what follows begins.
  size_t whole_calls() const { return array_ ? whole_calls_ : 0; }
  size_t whole_end() const { return whole_end_; }

  // Bytes that were looked at: once it is done, those of the calls.
  size_t position() const { return at_; }
  const std::vector<Call>& calls() const { return calls_; }

 private:
  enum class Phase : uint8_t { kLead, kItem, kObject, kAfter, kName, kId, kArguments, kDone };

  State Step(std::string_view marked);
  State Lead(std::string_view marked);
  State Item(char c);
  State Object(char c);
  State After(std::string_view marked);
  State Name(std::string_view marked);
  State EndWord(bool id_follows);
  State Arguments(char c);
  State Go(Phase phase) {
    phase_ = phase;
    return State::kMore;
  }

  const AnswerForm& form_;
  const std::span<const std::string> tools_;
  const size_t max_calls_;
  Phase phase_ = Phase::kLead;
  size_t at_ = 0;
  bool starved_ = false;  // the next byte decides with those that follow
  bool array_ = false;
  bool past_python_tag_ = false;
  std::string word_;  // a name, or an id
  std::optional<CallObject> object_;
  std::optional<JsonCursor> json_;
  std::vector<Call> calls_;
  size_t whole_calls_ = 0;
  size_t whole_end_ = 0;
};

}  // namespace eta
