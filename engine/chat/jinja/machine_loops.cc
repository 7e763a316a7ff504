// Loops, calls and macros of the machine.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/machine.h"
#include "engine/chat/jinja/values/operators.h"

namespace eta::jinja {
namespace {

constexpr size_t kMaxCalls = 100;

}  // namespace

std::optional<absl::Status> Machine::StepLoops(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kLoopBegin:
      return BeginLoop();
    case Op::kFilterNext:
      NextItem(instruction, true);
      break;
    case Op::kFilterKeep: {
      LoopRun& run = loops_.back();
      if (Pop().Truth()) run.kept.push_back(run.loop->items.sequence().items[run.next - 1]);
      PopScopes(1);
      break;
    }
    case Op::kFilterEnd:
      EndFilter();
      break;
    case Op::kLoopNext:
      NextItem(instruction, false);
      break;
    case Op::kLoopDone:
      loops_.back().done = true;
      break;
    case Op::kLoopEnd:
      Push(Value::Boolean(!loops_.back().done));
      loops_.pop_back();
      break;
    default:
      return std::nullopt;
  }
  return absl::OkStatus();
}

absl::Status Machine::BeginLoop() {
  const Value iterated = Pop();
  ASSIGN_OR_RETURN(auto items, Iterated(heap_, iterated));
  LoopRun run;
  run.loop = MakeObject<Loop>(heap_, 0, items.depth() + 1);
  run.loop->items = std::move(items);
  loops_.push_back(std::move(run));
  return absl::OkStatus();
}

void Machine::NextItem(const Instruction& instruction, bool filtered) {
  LoopRun& run = loops_.back();
  const std::vector<Value>& items = run.loop->items.sequence().items;
  if (run.next == items.size()) return Jump(instruction);
  PushScope();
  run.loop->index0 = run.next;
  if (!filtered && loop_name_) scope_->Set(*loop_name_, Value(Kind::kLoop, run.loop));
  Push(items[run.next++]);
}

void Machine::EndFilter() {
  LoopRun& run = loops_.back();
  run.loop = MakeObject<Loop>(heap_, 0, run.loop->depth);
  run.loop->items = MakeList(heap_, std::exchange(run.kept, {}));
  run.next = 0;
}

Call Machine::PopCall(const CallShape& shape) {
  Call call;
  std::vector<Value> named = PopMany(shape.names.size());
  for (size_t at = 0; at < named.size(); ++at) {
    call.named.emplace_back(shape.names[at], std::move(named[at]));
  }
  call.positional = PopMany(shape.positional);
  return call;
}

absl::Status Machine::CallValue(const CallShape& shape) {
  Call call = PopCall(shape);
  const Value callee = Pop();
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.As<Function>();
      if (function.receiver.IsText() && function.receiver.text().safe) {
        return NotKnown("methods of a text that 'safe' made are not known here");
      }
      return PushResult(RunNative(context_, *function.native, function.receiver, std::move(call)));
    }
    case Kind::kMacro:
      return CallMacro(callee.As<Macro>(), std::move(call));
    case Kind::kUndefined:
      return Fail(callee.why());
    default:
      return Fail("'" + std::string(callee.TypeName()) + "' object is not callable");
  }
}

// The arguments become variables of the macro's scope; what it has defaults for is left out there.
absl::Status Machine::CallMacro(const Macro& macro, Call call) {
  const MacroShape& shape = program_.macros[macro.index];
  const auto fail = [&](const std::string& sentence) {
    return Fail("macro '" + shape.name + "' " + sentence);
  };
  if (callers_.size() >= kMaxCalls) {
    return absl::ResourceExhaustedError("macros call each other over " + std::to_string(kMaxCalls) +
                                        " deep");
  }
  auto scope = std::make_shared<Scope>();
  scope->parent = macro.closure.lock();
  if (scope->parent == nullptr) return fail("is called outside of the block that it stands in");
  const size_t positional = std::min(call.positional.size(), shape.parameters.size());
  for (size_t at = 0; at < positional; ++at) {
    scope->Set(shape.parameters[at], std::move(call.positional[at]));
  }
  for (auto& [name, value] : call.named) {
    const auto parameter = std::find_if(
        shape.parameters.begin() + static_cast<std::ptrdiff_t>(positional), shape.parameters.end(),
        [&, wanted = name](uint32_t other) { return program_.names[other] == wanted; });
    if (parameter == shape.parameters.end()) {
      return fail("takes no argument '" + std::string(name) + "'");
    }
    scope->Set(*parameter, std::move(value));
  }
  for (size_t at = positional; at < shape.parameters.size(); ++at) {
    const uint32_t name = shape.parameters[at];
    if (shape.has_default[at] || scope->Find(name) != nullptr) continue;
    scope->Set(
        name, Value::Undefined(heap_, "parameter '" + program_.names[name] + "' was not provided"));
  }
  if (call.positional.size() > positional) {
    return fail("takes not more than " + std::to_string(shape.parameters.size()) + " arguments");
  }
  callers_.push_back({at_, std::move(scope_)});
  scope_ = std::move(scope);
  at_ = shape.entry;
  outputs_.emplace_back(heap_);
  return absl::OkStatus();
}

absl::Status Machine::Return() {
  if (callers_.empty()) {
    ended_ = true;
    return absl::OkStatus();
  }
  Value text = outputs_.back().Finish();
  outputs_.pop_back();
  Push(std::move(text));
  at_ = callers_.back().at;
  scope_ = std::move(callers_.back().scope);
  callers_.pop_back();
  return absl::OkStatus();
}

absl::StatusOr<RenderedChat> Interpret(const Program& program, const Variables& variables,
                                       Heap& heap, size_t output_bytes) {
  return Machine(program, variables, heap, output_bytes).Run();
}

}  // namespace eta::jinja
