// Compiles expressions: Jinja's grammar by recursive descent, whose stack is a list of its own, so
// that no template can exhaust the thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/chat/jinja/compile/code_builder.h"
#include "engine/chat/jinja/compile/token_stream.h"

namespace eta::jinja {

class ExpressionCompiler {
 public:
  ExpressionCompiler(TokenStream& tokens, CodeBuilder& code) : tokens_(tokens), code_(code) {}

  // Each compiles what stands at the stream's position to code that pushes one value.
  absl::Status Expression() { return Run({.rule = Rule::kCondition}); }
  // With commas: a tuple. `condition`: "a if b else c" may stand there.
  absl::Status Tuple(bool condition) { return Run({.rule = Rule::kTuple, .condition = condition}); }
  // Filters from "|" on, or from a name on with `inline_first`, of the value on the stack.
  absl::Status Filters(bool inline_first) {
    return Run({.rule = Rule::kFilters, .condition = inline_first});
  }

 private:
  enum class Rule : uint8_t {
    kCondition,
    kBinary,
    kNot,
    kCompare,
    kConcat,
    kUnary,
    kPrimary,
    kTuple,
    kList,
    kDict,
    kSubscript,
    kArguments,
    kFilters,
  };
  // What a rule remembers while the rules below it run.
  struct Frame {
    Rule rule;
    uint8_t state = 0;
    uint8_t level = 0;      // of kBinary
    bool condition = true;  // kTuple: with "if"; kUnary: with filters; kFilters: without "|"
    bool brackets = false;  // kTuple
    bool flag = false;      // kTuple: a comma was there; kUnary: a test is negated
    TokenKind pending = TokenKind::kEnd;
    uint32_t line = 0;
    uint32_t count = 0;
    size_t start = 0;  // of its code
    std::vector<Instruction> saved;
    std::vector<size_t> jumps;
    std::vector<std::string> names;
    std::string unknown;  // what is refused of the filter or test, if there is no such one
  };

  absl::Status Run(Frame first);
  void Push(Frame frame);
  void Pop() { frames_.pop_back(); }
  Frame& top() { return frames_.back(); }

  // One step of the rule on top of the stack.
  absl::Status Step();
  absl::Status Condition();
  absl::Status Binary();
  absl::Status Not();
  absl::Status Compare();
  absl::Status Concat();
  absl::Status Unary();
  absl::Status Primary();
  absl::Status TupleStep();
  absl::Status List();
  absl::Status Dict();
  absl::Status Subscript();
  absl::Status Arguments();
  absl::Status FiltersStep();

  // Parts of Unary: after the primary.
  absl::Status Postfix();
  absl::Status FilterOrTest();
  absl::Status BeginFilter();
  void EmitFilter();
  absl::Status BeginTest();
  absl::Status Name();
  absl::Status Strings();
  absl::Status Integer();
  absl::Status Real();
  void PushLower(uint8_t level);
  bool TakeCompareOperator(TokenKind& op);

  TokenStream& tokens_;
  CodeBuilder& code_;
  std::vector<Frame> frames_;
  CallShape shape_;  // of the arguments that were compiled last
};

}  // namespace eta::jinja
