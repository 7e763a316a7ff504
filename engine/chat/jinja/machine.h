// The machine that a program runs on. Its stacks are lists of its own: macros that call each other
// meet a limit of calls, not the end of the thread's stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/jinja/interpreter.h"
#include "engine/chat/jinja/natives/native.h"
#include "engine/chat/jinja/program.h"
#include "engine/chat/jinja/values/text_builder.h"
#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<uint32_t, Value>> variables;  // by name

  Value* Find(uint32_t name) {
    for (auto& [other, value] : variables) {
      if (other == name) return &value;
    }
    return nullptr;
  }
  void Set(uint32_t name, Value value) {
    if (Value* const old = Find(name)) {
      *old = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};

class Machine {
 public:
  Machine(const Program& program, const Variables& variables, Heap& heap, size_t output_bytes);

  absl::StatusOr<RenderedChat> Run();

 private:
  // A loop that runs.
  struct LoopRun {
    std::shared_ptr<Loop> loop;
    size_t next = 0;          // item
    bool done = false;        // a body ran to its end
    std::vector<Value> kept;  // while its items are filtered
  };
  // Where a macro was called.
  struct Caller {
    size_t at;
    std::shared_ptr<Scope> scope;
  };

  absl::Status Step(const Instruction& instruction);
  // The groups of instructions; nullopt where it belongs to another.
  std::optional<absl::Status> StepValues(const Instruction& instruction);
  std::optional<absl::Status> StepOperators(const Instruction& instruction);
  std::optional<absl::Status> StepLoops(const Instruction& instruction);

  Value Pop();
  void Push(Value value) { stack_.push_back(std::move(value)); }
  absl::Status PushResult(absl::StatusOr<Value> result);
  std::vector<Value> PopMany(size_t count);
  void Jump(const Instruction& instruction) { at_ += static_cast<size_t>(instruction.b) - 1; }

  absl::StatusOr<Value> Load(uint32_t name);
  absl::Status StoreAttribute(const Instruction& instruction);
  absl::Status Unpack(size_t count);
  absl::Status Emit();
  absl::Status Concat(size_t count);
  absl::Status MakeDictOf(size_t pairs);
  void PushScope();
  void PopScopes(size_t count);

  absl::Status BeginLoop();
  void NextItem(const Instruction& instruction, bool filtered);
  void EndFilter();

  Call PopCall(const CallShape& shape);
  absl::Status CallValue(const CallShape& shape);
  absl::Status CallMacro(const Macro& macro, Call call);
  absl::Status Return();

  const Program& program_;
  Heap& heap_;
  const size_t output_bytes_;
  Context context_;
  std::vector<std::optional<Value>> globals_;  // by name
  std::optional<uint32_t> loop_name_;

  size_t at_ = 0;  // the instruction after the one that runs
  bool ended_ = false;
  std::vector<Value> stack_;
  std::shared_ptr<Scope> scope_;
  std::vector<LoopRun> loops_;
  std::vector<TextBuilder> outputs_;  // the first is the chat's text
  std::vector<Caller> callers_;
};

}  // namespace eta::jinja
