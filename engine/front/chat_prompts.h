// Prompts of chats: the template that a model's chats go by, and the tokens of what it makes of
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/chat/chat.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools/answer_form.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {

// Where a chat template comes from: the model has one, or the operator gives another.
struct ChatTemplateSource {
  std::optional<std::string> of_model;
  std::optional<std::string> given;  // counts, where it is there
};

// Immutable, so any number of threads may use it. The tokenizer must outlive it.
class ChatPrompts {
 public:
  // Without a template, or with one of the model's that is not understood, chats are refused and
  // the rest is served. INVALID_ARGUMENT, field `chat_template`, for one that was given and is not
  // understood, or to a model that knows no text.
  static absl::StatusOr<std::unique_ptr<ChatPrompts>> Create(const ChatTemplateSource& source,
                                                             const Tokenizer& tokenizer);

  // The same errors for a template that would be given, as far as they can be told from it alone.
  static absl::Status Check(const std::string& given);

  const std::string& refusal() const { return refusal_; }  // why chats are refused; empty: not so
  // How answers to chats look, by the template; of none where chats are refused.
  const AnswerForm& form() const { return form_; }
  // The model has a template that is not understood.
  bool template_refused() const { return template_refused_; }

  // What the template makes of a chat that ValidateChat found good. INVALID_ARGUMENT, field `chat`,
  // for a chat that the template refuses, that takes it too long, or that it makes nothing of;
  // FAILED_PRECONDITION (CHAT_UNSUPPORTED).
  absl::StatusOr<RenderedChat> Render(const Chat& chat) const;
  // Of messages that are token ids these ids. REQUIRES: `rendered` is what Render made of `chat`.
  absl::StatusOr<std::vector<int32_t>> Encode(const RenderedChat& rendered, const Chat& chat) const;

 private:
  explicit ChatPrompts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  absl::Status TellForm();
  // Ids of a stretch of the text; `follows`: ids stand before it.
  absl::StatusOr<std::vector<int32_t>> EncodeStretch(const RenderedChat& rendered,
                                                     ByteRange stretch, bool follows) const;

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // null: chats are refused
  AnswerForm form_;
  std::string refusal_;
  bool template_refused_ = false;
};

// How many bytes of a rendered chat its messages wrote: those that the template did not.
int64_t TextBytes(const RenderedChat& rendered);

}  // namespace eta
