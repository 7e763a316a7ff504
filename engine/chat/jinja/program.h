// A template as code of a machine with a stack. Jumps are relative, so that a piece of code may be
// moved while a template is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/chat/jinja/values/value.h"

namespace eta::jinja {

enum class Op : uint8_t {
  kNop,
  // Values: ... -> ... value
  kConstant,   // a: constant
  kUndefined,  // a: constant that says why
  kLoad,       // a: name
  kMakeMacro,  // a: macro
  // value ->
  kStore,           // a: name
  kStoreAttribute,  // a: name of the namespace, b: constant, the attribute
  kPop,
  kEmit,
  kEmitConstant,  // a: constant; takes nothing
  kUnpack,        // a: count; pushes the items, the first on top
  // Several values -> one
  kBinary,   // a: token of the operator
  kCompare,  // a: token of the operator
  kConcat,   // a: count
  kNegate,
  kPositive,
  kNot,
  kAttribute,  // a: constant, the name
  kItem,
  kSlice,     // value start stop step
  kMakeList,  // a: count
  kMakeTuple,
  kMakeDict,  // a: count of pairs
  kFilter,    // a: filter, b: call
  kTest,      // a: test, b: call
  kRefuse,    // a: constant, a sentence: what stood here is not known
  kCall,      // b: call
  // Control: b is the distance from this instruction
  kJump,
  kSkip,             // as kJump: over the body of a macro
  kJumpIfFalse,      // pops
  kJumpIfFalseKeep,  // keeps the value where it jumps, pops it where it does not
  kJumpIfTrueKeep,
  kCompareChain,  // a: operator; true: leaves the right value; false: leaves False and jumps
  // Loops
  kLoopBegin,   // pops what is iterated over
  kFilterNext,  // b: past the last item; else a scope, and the item
  kFilterKeep,  // pops whether to keep the item
  kFilterEnd,
  kLoopNext,  // b: past the last item; else a scope with `loop`, and the item
  kLoopDone,  // the body ran to its end
  kLoopEnd,   // pushes whether no body ran to its end
  // Scopes and captures
  kPushScope,
  kPopScopes,  // a: count
  kCapture,
  kEndCapture,    // pushes the text
  kDropCaptures,  // a: count
  // Macros
  kDefault,  // a: name; b: past the default where the argument was given
  kReturn,
};

struct Instruction {
  Op op;
  uint32_t a = 0;
  int32_t b = 0;
  uint32_t line = 0;
};

// How many values a call has, and the names of the last of them.
struct CallShape {
  uint32_t positional = 0;
  std::vector<std::string> names;
};

struct MacroShape {
  std::string name;
  std::vector<uint32_t> parameters;  // names
  std::vector<bool> has_default;
  uint32_t entry = 0;  // the first instruction
};

// Immutable once it is compiled. Its constants may be shared by threads: they are counted nowhere.
struct Program {
  std::vector<Instruction> code;
  std::vector<Value> constants;
  std::vector<std::string> names;
  std::vector<CallShape> calls;
  std::vector<MacroShape> macros;
};

}  // namespace eta::jinja
