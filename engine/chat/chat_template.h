// The chat template of a model: Jinja, as transformers renders it (trim_blocks, lstrip_blocks, loop
// controls, an immutable sandbox), without what reaches beyond values.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/chat.h"

namespace eta {

namespace jinja {
struct Program;
}

// Limits by definition. RESOURCE_EXHAUSTED or INVALID_ARGUMENT names the one that was met.
struct ChatTemplateLimits {
  static constexpr size_t kSourceBytes = size_t{1} << 20;
  static constexpr size_t kOutputBytes = size_t{16} << 20;
  static constexpr size_t kLiveBytes = size_t{64} << 20;  // values that are held at one time
  static constexpr size_t kSteps = size_t{1} << 22;       // operations, long texts counting more
  static constexpr size_t kVariablesBytes = size_t{64} << 10;
  static constexpr size_t kVariablesDepth = 16;
  static constexpr size_t kToolDepth = 32;  // of parameters of a tool, and of arguments of a call
};

// Immutable, so any number of threads may render.
class ChatTemplate {
 public:
  // How the vocabulary spells beginning and end of text; empty where it has none.
  struct Tokens {
    std::string bos;  // bos_token in the template
    std::string eos;  // eos_token
  };

  // INVALID_ARGUMENT with the line: it is no Jinja. UNIMPLEMENTED with the line: a statement,
  // filter, test or function that is not known here.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view source,
                                                             Tokens tokens);
  ~ChatTemplate();

  // INVALID_ARGUMENT: what the template says by raise_exception, an operation that its values do
  // not have, text that is not UTF-8, variables that are no JSON object or take a name of the
  // template's own. UNIMPLEMENTED: a method or form that is not known here. RESOURCE_EXHAUSTED: a
  // limit.
  // Of a message that is token ids the text has a place in their stead; INVALID_ARGUMENT where the
  // template does not write that once.
  absl::StatusOr<RenderedChat> Render(const Chat& chat) const;

  // The texts of its own that it may write: those outside of tags, and the strings in tags but for
  // the names of items.
  std::vector<std::string> Literals() const;

 private:
  ChatTemplate(std::unique_ptr<const jinja::Program> program, Tokens tokens);

  const std::unique_ptr<const jinja::Program> program_;
  const Tokens tokens_;
};

}  // namespace eta
