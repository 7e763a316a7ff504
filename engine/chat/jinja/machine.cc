#include "engine/chat/jinja/machine.h"

#include <algorithm>
#include <string>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/natives/access.h"
#include "engine/chat/jinja/values/operators.h"
#include "engine/chat/jinja/values/python_text.h"

namespace eta::jinja {
namespace {

std::optional<uint32_t> NameOf(const Program& program, std::string_view name) {
  const auto found = std::find(program.names.begin(), program.names.end(), name);
  if (found == program.names.end()) return std::nullopt;
  return static_cast<uint32_t>(found - program.names.begin());
}

// What Jinja has under these names unless a template or a chat gives them a value.
bool IsUnknownGlobal(std::string_view name) {
  static constexpr std::string_view kUnknown[] = {"caller", "cycler", "dict", "joiner"};
  return std::find(std::begin(kUnknown), std::end(kUnknown), name) != std::end(kUnknown);
}

absl::Status WithLine(const absl::Status& status, uint32_t line) {
  return absl::Status(status.code(), "chat template, line " + std::to_string(line) + ": " +
                                         std::string(status.message()));
}

}  // namespace

Machine::Machine(const Program& program, const Variables& variables, Heap& heap,
                 size_t output_bytes)
    : program_(program),
      heap_(heap),
      output_bytes_(output_bytes),
      context_{heap},
      globals_(program.names.size()),
      loop_name_(NameOf(program, "loop")),
      scope_(std::make_shared<Scope>()) {
  for (size_t name = 0; name < program.names.size(); ++name) {
    if (const Native* native = FindGlobal(program.names[name])) {
      auto function = MakeObject<Function>(heap, 0, 0);
      function->native = native;
      globals_[name] = Value(Kind::kFunction, std::move(function));
    }
  }
  for (const auto& [name, value] : variables) {
    if (const auto known = NameOf(program, name)) globals_[*known] = value;
  }
  outputs_.emplace_back(heap);
}

absl::StatusOr<RenderedChat> Machine::Run() {
  while (!ended_) {
    const Instruction& instruction = program_.code[at_++];
    heap_.Work(1);
    absl::Status status = Step(instruction);
    if (status.ok()) status = heap_.status();
    if (status.ok() && outputs_[0].size() > output_bytes_) {
      status = absl::ResourceExhaustedError("the text is longer than the limit of " +
                                            std::to_string(output_bytes_ >> 20) + " MiB");
    }
    if (!status.ok()) return WithLine(status, instruction.line);
  }
  return RenderedChat{outputs_[0].TakeBytes(), outputs_[0].TakeControl()};
}

absl::Status Machine::Step(const Instruction& instruction) {
  if (auto status = StepValues(instruction)) return *status;
  if (auto status = StepOperators(instruction)) return *status;
  if (auto status = StepLoops(instruction)) return *status;
  return absl::InternalError("no such instruction");
}

std::optional<absl::Status> Machine::StepValues(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kNop:
      break;
    case Op::kConstant:
      Push(program_.constants[instruction.a]);
      break;
    case Op::kUndefined:
      Push(Value(Kind::kUndefined, program_.constants[instruction.a].object()));
      break;
    case Op::kLoad:
      return PushResult(Load(instruction.a));
    case Op::kMakeMacro: {
      auto macro = MakeObject<Macro>(heap_, 0, 0);
      macro->index = instruction.a;
      macro->closure = scope_;
      Push(Value(Kind::kMacro, std::move(macro)));
      break;
    }
    case Op::kStore:
      scope_->Set(instruction.a, Pop());
      break;
    case Op::kStoreAttribute:
      return StoreAttribute(instruction);
    case Op::kPop:
      Pop();
      break;
    case Op::kEmit:
      return Emit();
    case Op::kEmitConstant:
      outputs_.back().Append(program_.constants[instruction.a].text());
      break;
    case Op::kUnpack:
      return Unpack(instruction.a);
    case Op::kJump:
    case Op::kSkip:
      Jump(instruction);
      break;
    case Op::kJumpIfFalse:
      if (!Pop().Truth()) Jump(instruction);
      break;
    case Op::kJumpIfFalseKeep:
    case Op::kJumpIfTrueKeep:
      if (stack_.back().Truth() == (instruction.op == Op::kJumpIfTrueKeep)) {
        Jump(instruction);
      } else {
        Pop();
      }
      break;
    case Op::kPushScope:
      PushScope();
      break;
    case Op::kPopScopes:
      PopScopes(instruction.a);
      break;
    case Op::kCapture:
      outputs_.emplace_back(heap_);
      break;
    case Op::kEndCapture: {
      Value text = outputs_.back().Finish();
      outputs_.pop_back();
      Push(std::move(text));
      break;
    }
    case Op::kDropCaptures:
      for (uint32_t i = 0; i < instruction.a; ++i) outputs_.pop_back();
      break;
    default:
      return std::nullopt;
  }
  return absl::OkStatus();
}

std::optional<absl::Status> Machine::StepOperators(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kBinary: {
      const Value right = Pop();
      const Value left = Pop();
      return PushResult(Binary(heap_, static_cast<TokenKind>(instruction.a), left, right));
    }
    case Op::kCompare:
    case Op::kCompareChain: {
      const Value right = Pop();
      const Value left = Pop();
      ASSIGN_OR_RETURN(const auto holds,
                       Compare(heap_, static_cast<TokenKind>(instruction.a), left, right));
      if (instruction.op == Op::kCompareChain && holds) {
        Push(right);
      } else {
        Push(Value::Boolean(holds));
        if (instruction.op == Op::kCompareChain) Jump(instruction);
      }
      return absl::OkStatus();
    }
    case Op::kConcat:
      return Concat(instruction.a);
    case Op::kNegate:
    case Op::kPositive:
      return PushResult(Negate(Pop(), instruction.op == Op::kNegate));
    case Op::kNot:
      Push(Value::Boolean(!Pop().Truth()));
      return absl::OkStatus();
    case Op::kAttribute:
      return PushResult(Attribute(heap_, Pop(), program_.constants[instruction.a]));
    case Op::kItem: {
      const Value key = Pop();
      return PushResult(Item(heap_, Pop(), key));
    }
    case Op::kSlice: {
      const Value step = Pop();
      const Value stop = Pop();
      const Value start = Pop();
      return PushResult(Slice(heap_, Pop(), start, stop, step));
    }
    case Op::kMakeList:
      Push(MakeList(heap_, PopMany(instruction.a)));
      return absl::OkStatus();
    case Op::kMakeTuple:
      Push(MakeTuple(heap_, PopMany(instruction.a)));
      return absl::OkStatus();
    case Op::kMakeDict:
      return MakeDictOf(instruction.a);
    case Op::kFilter:
    case Op::kTest: {
      Call call = PopCall(program_.calls[static_cast<size_t>(instruction.b)]);
      const Value receiver = Pop();
      return PushResult(instruction.op == Op::kFilter
                            ? RunFilter(context_, instruction.a, receiver, std::move(call))
                            : RunTest(context_, instruction.a, receiver, std::move(call)));
    }
    case Op::kRefuse:
      return NotKnown(program_.constants[instruction.a].text().bytes);
    case Op::kCall:
      return CallValue(program_.calls[static_cast<size_t>(instruction.b)]);
    case Op::kDefault:
      if (scope_->Find(instruction.a) != nullptr) Jump(instruction);
      return absl::OkStatus();
    case Op::kReturn:
      return Return();
    default:
      return std::nullopt;
  }
}

Value Machine::Pop() {
  Value value = std::move(stack_.back());
  stack_.pop_back();
  return value;
}

absl::Status Machine::PushResult(absl::StatusOr<Value> result) {
  if (!result.ok()) return result.status();
  Push(*std::move(result));
  return absl::OkStatus();
}

std::vector<Value> Machine::PopMany(size_t count) {
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<Value> values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
  stack_.erase(first, stack_.end());
  return values;
}

absl::StatusOr<Value> Machine::Load(uint32_t name) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->Find(name)) return *value;
  }
  if (globals_[name]) return *globals_[name];
  const std::string quoted = "'" + program_.names[name] + "'";
  if (IsUnknownGlobal(program_.names[name])) return NotKnown(quoted + " is not known here");
  return Value::Undefined(heap_, quoted + " is undefined");
}

absl::Status Machine::StoreAttribute(const Instruction& instruction) {
  ASSIGN_OR_RETURN(const auto space, Load(instruction.a));
  if (!space.Is(Kind::kNamespace)) {
    return Fail("an attribute can be set of a namespace alone, and '" +
                program_.names[instruction.a] + "' is none");
  }
  const std::string& name = program_.constants[static_cast<size_t>(instruction.b)].text().bytes;
  auto& attributes = space.As<Namespace>().attributes;
  const auto entry = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& other) { return other.first == name; });
  if (entry != attributes.end()) {
    entry->second = Pop();
  } else {
    attributes.emplace_back(name, Pop());
  }
  return absl::OkStatus();
}

absl::Status Machine::Unpack(size_t count) {
  ASSIGN_OR_RETURN(const auto items, Iterated(heap_, Pop()));
  const std::vector<Value>& values = items.sequence().items;
  if (values.size() != count) {
    return Fail("expected " + std::to_string(count) + " values to unpack, got " +
                std::to_string(values.size()));
  }
  for (auto value = values.rbegin(); value != values.rend(); ++value) Push(*value);
  return absl::OkStatus();
}

absl::Status Machine::Emit() {
  const Value value = Pop();
  return AppendStr(heap_, value, outputs_.back());
}

absl::Status Machine::Concat(size_t count) {
  const std::vector<Value> parts = PopMany(count);
  TextBuilder out(heap_);
  for (const Value& part : parts) RETURN_IF_ERROR(AppendStr(heap_, part, out));
  Push(out.Finish());
  return absl::OkStatus();
}

absl::Status Machine::MakeDictOf(size_t pairs) {
  std::vector<Value> values = PopMany(pairs * 2);
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(pairs);
  for (size_t at = 0; at < values.size(); at += 2) {
    RETURN_IF_ERROR(PutKey(heap_, entries, values[at], std::move(values[at + 1])));
    if (heap_.exhausted()) return heap_.status();
  }
  Push(MakeDict(heap_, std::move(entries)));
  return absl::OkStatus();
}

void Machine::PushScope() {
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(scope_);
  scope_ = std::move(scope);
}

void Machine::PopScopes(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    std::shared_ptr<Scope> parent = scope_->parent;
    scope_ = std::move(parent);
  }
}

}  // namespace eta::jinja
