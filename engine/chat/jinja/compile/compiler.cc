// lint: untrusted-input, fuzz-covered
// Statements, in one pass over the tokens: what is open is a list, not the thread's stack.
#include "engine/chat/jinja/compile/compiler.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/chat/jinja/compile/code_builder.h"
#include "engine/chat/jinja/compile/expression_compiler.h"
#include "engine/chat/jinja/compile/token_stream.h"

namespace eta::jinja {
namespace {

constexpr size_t kMaxOpen = 200;
constexpr size_t kMaxUnknown = 100;

enum class BlockKind : uint8_t { kIf, kElse, kFor, kForElse, kMacro, kFilter, kSet, kGeneration };

// A statement that waits for its end.
struct Block {
  BlockKind kind;
  uint32_t line;
  size_t next = 0;                 // kIf: the jump past its body; kFor: its kLoopNext
  std::vector<size_t> to_end;      // jumps to what follows the statement
  std::vector<size_t> breaks;      // kFor: jumps to its kLoopEnd
  std::vector<Instruction> after;  // kFilter, kSet: code that runs after the body
  uint32_t macro = 0;              // kMacro
};

std::string_view Spelling(BlockKind kind) {
  switch (kind) {
    case BlockKind::kIf:
    case BlockKind::kElse:
      return "if";
    case BlockKind::kFor:
    case BlockKind::kForElse:
      return "for";
    case BlockKind::kMacro:
      return "macro";
    case BlockKind::kFilter:
      return "filter";
    case BlockKind::kSet:
      return "set";
    case BlockKind::kGeneration:
      return "generation";
  }
  return "";
}

class Compiler {
 public:
  explicit Compiler(const Tokens& tokens) : tokens_(tokens), expressions_(tokens_, code_) {}

  absl::StatusOr<std::unique_ptr<const Program>> Run() {
    while (!tokens_.Is(TokenKind::kEnd)) {
      const uint32_t line = tokens_.line();
      if (tokens_.Is(TokenKind::kData)) {
        code_.Emit(Op::kEmitConstant, line, code_.TextConstant(std::string(tokens_.text())));
        tokens_.Skip();
      } else if (tokens_.SkipIf(TokenKind::kVariableBegin)) {
        RETURN_IF_ERROR(expressions_.Tuple(true));
        code_.Emit(Op::kEmit, line);
        RETURN_IF_ERROR(tokens_.Expect(TokenKind::kVariableEnd, "'}}'"));
      } else {
        tokens_.Skip();  // kBlockBegin
        RETURN_IF_ERROR(Statement());
      }
    }
    if (!open_.empty()) {
      return SyntaxError(open_.back().line,
                         "'" + std::string(Spelling(open_.back().kind)) + "' has no end");
    }
    code_.Emit(Op::kReturn, 0);
    RETURN_IF_ERROR(CheckUnknown());
    return code_.Release();
  }

 private:
  using Handler = absl::Status (Compiler::*)(uint32_t line);

  absl::Status Statement() {
    static constexpr std::array<std::pair<std::string_view, Handler>, 16> kStatements = {{
        {"if", &Compiler::If},
        {"elif", &Compiler::Elif},
        {"else", &Compiler::Else},
        {"endif", &Compiler::EndIf},
        {"for", &Compiler::For},
        {"endfor", &Compiler::EndFor},
        {"break", &Compiler::Break},
        {"continue", &Compiler::Continue},
        {"set", &Compiler::Set},
        {"endset", &Compiler::EndSet},
        {"macro", &Compiler::Macro},
        {"endmacro", &Compiler::EndMacro},
        {"filter", &Compiler::Filter},
        {"endfilter", &Compiler::EndFilter},
        {"generation", &Compiler::Generation},
        {"endgeneration", &Compiler::EndGeneration},
    }};
    if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of a statement");
    const uint32_t line = tokens_.line();
    const auto* const statement =
        std::find_if(kStatements.begin(), kStatements.end(),
                     [this](const auto& entry) { return entry.first == tokens_.text(); });
    if (statement == kStatements.end()) {
      return NotKnownError(line,
                           "statement '" + std::string(tokens_.text()) + "' is not known here");
    }
    tokens_.Skip();
    RETURN_IF_ERROR((this->*statement->second)(line));
    return tokens_.Expect(TokenKind::kBlockEnd, "'%}'");
  }

  // As in Jinja: what is not known is refused now, but for what only runs on a condition. Templates
  // of several programs have filters for each of them.
  absl::Status CheckUnknown() {
    const std::vector<Instruction>& code = code_.program().code;
    size_t unknown = 0;
    for (size_t at = 0; at < code.size(); ++at) {
      if (code[at].op != Op::kRefuse) continue;
      if (++unknown <= kMaxUnknown && IsConditional(at)) continue;
      return NotKnownError(code[at].line, code_.program().constants[code[at].a].text().bytes);
    }
    return absl::OkStatus();
  }
  bool IsConditional(size_t at) const {
    const std::vector<Instruction>& code = code_.program().code;
    for (size_t from = 0; from < at; ++from) {
      const Op op = code[from].op;
      const bool jumps = op == Op::kJump || op == Op::kJumpIfFalse || op == Op::kJumpIfFalseKeep ||
                         op == Op::kJumpIfTrueKeep;
      if (jumps && code[from].b > 0 && from + static_cast<size_t>(code[from].b) > at) return true;
    }
    return false;
  }

  absl::Status Open(Block block) {
    if (open_.size() >= kMaxOpen) {
      return SyntaxError(block.line, "statements nest over " + std::to_string(kMaxOpen) + " deep");
    }
    tokens_.SkipIf(TokenKind::kColon);  // as in Python
    open_.push_back(std::move(block));
    return absl::OkStatus();
  }
  // The innermost statement, which has to be of this kind.
  absl::Status CloseAs(BlockKind kind, uint32_t line, Block& block) {
    if (open_.empty() || open_.back().kind != kind) {
      return SyntaxError(line, "an end of '" + std::string(Spelling(kind)) + "' that is not open");
    }
    block = std::move(open_.back());
    open_.pop_back();
    return absl::OkStatus();
  }

  // if, elif, else

  absl::Status If(uint32_t line) {
    RETURN_IF_ERROR(expressions_.Tuple(false));
    const size_t jump = code_.Emit(Op::kJumpIfFalse, line);
    return Open({.kind = BlockKind::kIf, .line = line, .next = jump});
  }
  absl::Status NextBranch(uint32_t line) {
    if (open_.empty() || open_.back().kind != BlockKind::kIf) {
      return SyntaxError(line, "'elif' or 'else' without 'if'");
    }
    Block& block = open_.back();
    block.to_end.push_back(code_.Emit(Op::kJump, line));
    code_.AimHere(block.next);
    return absl::OkStatus();
  }
  absl::Status Elif(uint32_t line) {
    RETURN_IF_ERROR(NextBranch(line));
    RETURN_IF_ERROR(expressions_.Tuple(false));
    open_.back().next = code_.Emit(Op::kJumpIfFalse, line);
    tokens_.SkipIf(TokenKind::kColon);
    return absl::OkStatus();
  }
  absl::Status Else(uint32_t line) {
    if (!open_.empty() && open_.back().kind == BlockKind::kFor) return ForElse(line);
    RETURN_IF_ERROR(NextBranch(line));
    open_.back().kind = BlockKind::kElse;
    tokens_.SkipIf(TokenKind::kColon);
    return absl::OkStatus();
  }
  absl::Status EndIf(uint32_t line) {
    Block block{.kind = BlockKind::kIf, .line = line};
    if (!open_.empty() && open_.back().kind == BlockKind::kElse) {
      RETURN_IF_ERROR(CloseAs(BlockKind::kElse, line, block));
    } else {
      RETURN_IF_ERROR(CloseAs(BlockKind::kIf, line, block));
      code_.AimHere(block.next);
    }
    for (const size_t jump : block.to_end) code_.AimHere(jump);
    return absl::OkStatus();
  }

  // for

  absl::Status For(uint32_t line) {
    const size_t start = code_.size();
    RETURN_IF_ERROR(Target(false));
    const std::vector<Instruction> target = code_.Cut(start);
    if (!tokens_.SkipIfName("in")) return tokens_.Unexpected("'in'");
    RETURN_IF_ERROR(expressions_.Tuple(false));
    code_.Emit(Op::kLoopBegin, line);
    if (tokens_.SkipIfName("if")) {
      const size_t next = code_.Emit(Op::kFilterNext, line);
      code_.Paste(target);
      RETURN_IF_ERROR(expressions_.Expression());
      code_.Emit(Op::kFilterKeep, line);
      code_.Aim(code_.Emit(Op::kJump, line), next);
      code_.AimHere(next);
      code_.Emit(Op::kFilterEnd, line);
    }
    if (tokens_.IsName("recursive")) {
      return NotKnownError(line, "recursive loops are not known here");
    }
    const size_t next = code_.Emit(Op::kLoopNext, line);
    code_.Paste(target);
    return Open({.kind = BlockKind::kFor, .line = line, .next = next});
  }
  // After the body, past the loop.
  void EndBody(Block& block, uint32_t line) {
    code_.Emit(Op::kLoopDone, line);
    code_.Emit(Op::kPopScopes, line, 1);
    code_.Aim(code_.Emit(Op::kJump, line), block.next);
    code_.AimHere(block.next);
    for (const size_t jump : block.breaks) code_.AimHere(jump);
    code_.Emit(Op::kLoopEnd, line);
  }
  absl::Status ForElse(uint32_t line) {
    Block& block = open_.back();
    EndBody(block, line);
    block.to_end = {code_.Emit(Op::kJumpIfFalse, line)};
    block.kind = BlockKind::kForElse;
    code_.Emit(Op::kPushScope, line);
    tokens_.SkipIf(TokenKind::kColon);
    return absl::OkStatus();
  }
  absl::Status EndFor(uint32_t line) {
    Block block{.kind = BlockKind::kFor, .line = line};
    if (!open_.empty() && open_.back().kind == BlockKind::kForElse) {
      RETURN_IF_ERROR(CloseAs(BlockKind::kForElse, line, block));
      code_.Emit(Op::kPopScopes, line, 1);
      code_.AimHere(block.to_end[0]);
    } else {
      RETURN_IF_ERROR(CloseAs(BlockKind::kFor, line, block));
      EndBody(block, line);
      code_.Emit(Op::kPop, line);
    }
    return absl::OkStatus();
  }

  // The loop that `break` and `continue` speak of; what was opened inside is left before.
  absl::StatusOr<Block*> LeaveToLoop(uint32_t line, std::string_view statement) {
    size_t scopes = 0;
    size_t captures = 0;
    for (auto block = open_.rbegin(); block != open_.rend(); ++block) {
      switch (block->kind) {
        case BlockKind::kIf:
        case BlockKind::kElse:
          break;
        case BlockKind::kForElse:
          ++scopes;
          break;
        case BlockKind::kFilter:
        case BlockKind::kSet:
          ++scopes;
          ++captures;
          break;
        case BlockKind::kFor:
          if (captures > 0) code_.Emit(Op::kDropCaptures, line, captures);
          code_.Emit(Op::kPopScopes, line, scopes + 1);
          return &*block;
        case BlockKind::kMacro:
        case BlockKind::kGeneration:
          block = std::prev(open_.rend());
          break;
      }
    }
    return SyntaxError(line, "'" + std::string(statement) + "' outside of a loop");
  }
  absl::Status Break(uint32_t line) {
    ASSIGN_OR_RETURN(const auto loop, LeaveToLoop(line, "break"));
    loop->breaks.push_back(code_.Emit(Op::kJump, line));
    return absl::OkStatus();
  }
  absl::Status Continue(uint32_t line) {
    ASSIGN_OR_RETURN(const auto loop, LeaveToLoop(line, "continue"));
    code_.Aim(code_.Emit(Op::kJump, line), loop->next);
    return absl::OkStatus();
  }

  // Code that stores what is on the stack: in a name, in names of a tuple, or in an attribute.
  absl::Status Target(bool with_attributes) {
    // The tuples that are open: their kUnpack, and how many targets they have.
    struct Part {
      size_t unpack;
      uint32_t count = 0;
      bool comma = false;
    };
    std::vector<Part> parts = {{code_.Emit(Op::kNop, tokens_.line())}};
    while (true) {
      const uint32_t line = tokens_.line();
      if (tokens_.SkipIf(TokenKind::kLeftParen)) {
        if (parts.size() > kMaxOpen) return SyntaxError(line, "a target nests too deep");
        ++parts.back().count;
        parts.push_back({code_.Emit(Op::kNop, line)});
        continue;
      }
      if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("a name to assign to");
      RETURN_IF_ERROR(StoreName(with_attributes));
      ++parts.back().count;
      while (true) {
        if (tokens_.SkipIf(TokenKind::kComma)) {
          parts.back().comma = true;
          if (tokens_.Is(TokenKind::kAssign)) return tokens_.Unexpected("a name to assign to");
        }
        const bool ends = parts.size() > 1 ? tokens_.Is(TokenKind::kRightParen)
                                           : !tokens_.Is(TokenKind::kName) || tokens_.IsName("in");
        if (!ends || (parts.size() == 1 && tokens_.Is(TokenKind::kLeftParen))) break;
        const Part part = parts.back();
        if (part.comma || part.count > 1) {
          code_.program().code[part.unpack].op = Op::kUnpack;
          code_.program().code[part.unpack].a = part.count;
        }
        parts.pop_back();
        if (parts.empty()) return absl::OkStatus();
        tokens_.Skip();  // ')'
      }
      if (!parts.back().comma) return tokens_.Unexpected("','");
    }
  }
  absl::Status StoreName(bool with_attributes) {
    static constexpr std::array<std::string_view, 6> kReserved = {"true", "false", "none",
                                                                  "True", "False", "None"};
    const uint32_t line = tokens_.line();
    const std::string_view name = tokens_.text();
    if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
      return SyntaxError(line, "'" + std::string(name) + "' cannot be assigned to");
    }
    tokens_.Skip();
    if (with_attributes && tokens_.SkipIf(TokenKind::kDot)) {
      if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of an attribute");
      code_.Emit(Op::kStoreAttribute, line, code_.Name(name),
                 code_.TextConstant(std::string(tokens_.text())));
      tokens_.Skip();
    } else {
      code_.Emit(Op::kStore, line, code_.Name(name));
    }
    return absl::OkStatus();
  }

  // set

  absl::Status Set(uint32_t line) {
    const size_t start = code_.size();
    RETURN_IF_ERROR(Target(true));
    std::vector<Instruction> store = code_.Cut(start);
    if (tokens_.SkipIf(TokenKind::kAssign)) {
      RETURN_IF_ERROR(expressions_.Tuple(true));
      code_.Paste(store);
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(expressions_.Filters(false));
    std::vector<Instruction> after = code_.Cut(start);
    after.insert(after.end(), store.begin(), store.end());
    BeginCapture(line);
    return Open({.kind = BlockKind::kSet, .line = line, .after = std::move(after)});
  }
  absl::Status EndSet(uint32_t line) { return EndCapture(BlockKind::kSet, line); }

  void BeginCapture(uint32_t line) {
    code_.Emit(Op::kCapture, line);
    code_.Emit(Op::kPushScope, line);
  }
  absl::Status EndCapture(BlockKind kind, uint32_t line) {
    Block block{.kind = kind, .line = line};
    RETURN_IF_ERROR(CloseAs(kind, line, block));
    code_.Emit(Op::kPopScopes, line, 1);
    code_.Emit(Op::kEndCapture, line);
    code_.Paste(block.after);
    return absl::OkStatus();
  }

  absl::Status Filter(uint32_t line) {
    const size_t start = code_.size();
    RETURN_IF_ERROR(expressions_.Filters(true));
    std::vector<Instruction> after = code_.Cut(start);
    after.push_back({Op::kEmit, 0, 0, line});
    BeginCapture(line);
    return Open({.kind = BlockKind::kFilter, .line = line, .after = std::move(after)});
  }
  absl::Status EndFilter(uint32_t line) { return EndCapture(BlockKind::kFilter, line); }

  // generation

  absl::Status Generation(uint32_t line) {
    code_.Emit(Op::kPushScope, line);
    return Open({.kind = BlockKind::kGeneration, .line = line});
  }
  absl::Status EndGeneration(uint32_t line) {
    Block block{.kind = BlockKind::kGeneration, .line = line};
    RETURN_IF_ERROR(CloseAs(BlockKind::kGeneration, line, block));
    code_.Emit(Op::kPopScopes, line, 1);
    return absl::OkStatus();
  }

  // macro

  // (PARAMETER, PARAMETER = DEFAULT, ...), and code that fills in defaults.
  absl::Status Signature(MacroShape& shape) {
    RETURN_IF_ERROR(tokens_.Expect(TokenKind::kLeftParen, "'('"));
    while (!tokens_.Is(TokenKind::kRightParen)) {
      if (!shape.parameters.empty()) {
        RETURN_IF_ERROR(tokens_.Expect(TokenKind::kComma, "','"));
      }
      const uint32_t line = tokens_.line();
      if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of a parameter");
      const uint32_t name = code_.Name(tokens_.text());
      if (std::find(shape.parameters.begin(), shape.parameters.end(), name) !=
          shape.parameters.end()) {
        return SyntaxError(line, "a parameter is there twice");
      }
      tokens_.Skip();
      const bool has_default = tokens_.SkipIf(TokenKind::kAssign);
      if (has_default) {
        const size_t jump = code_.Emit(Op::kDefault, line, name);
        RETURN_IF_ERROR(expressions_.Expression());
        code_.Emit(Op::kStore, line, name);
        // Past the default: kDefault's distance.
        code_.AimHere(jump);
      } else if (!shape.has_default.empty() && shape.has_default.back()) {
        return SyntaxError(line, "a parameter without a default follows one with a default");
      }
      shape.parameters.push_back(name);
      shape.has_default.push_back(has_default);
    }
    tokens_.Skip();
    return absl::OkStatus();
  }

  absl::Status Macro(uint32_t line) {
    MacroShape shape;
    if (!tokens_.Is(TokenKind::kName)) return tokens_.Unexpected("the name of a macro");
    shape.name = std::string(tokens_.text());
    tokens_.Skip();
    const size_t over = code_.Emit(Op::kSkip, line);
    shape.entry = static_cast<uint32_t>(code_.size());
    RETURN_IF_ERROR(Signature(shape));
    const auto macro = static_cast<uint32_t>(code_.program().macros.size());
    code_.program().macros.push_back(std::move(shape));
    return Open({.kind = BlockKind::kMacro, .line = line, .next = over, .macro = macro});
  }
  absl::Status EndMacro(uint32_t line) {
    Block block{.kind = BlockKind::kMacro, .line = line};
    RETURN_IF_ERROR(CloseAs(BlockKind::kMacro, line, block));
    code_.Emit(Op::kReturn, line);
    code_.AimHere(block.next);
    code_.Emit(Op::kMakeMacro, line, block.macro);
    code_.Emit(Op::kStore, line, code_.Name(code_.program().macros[block.macro].name));
    return absl::OkStatus();
  }

  TokenStream tokens_;
  CodeBuilder code_;
  ExpressionCompiler expressions_;
  std::vector<Block> open_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Program>> Compile(std::string_view source) {
  ASSIGN_OR_RETURN(const auto tokens, Tokenize(source));
  return Compiler(tokens).Run();
}

}  // namespace eta::jinja
