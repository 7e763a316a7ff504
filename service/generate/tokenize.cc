// lint: untrusted-input, fuzz-covered
#include "service/generate/tokenize.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "service/generate/convert_chat.h"
#include "service/limits/token_budget.h"

namespace eta {
namespace {

// A request that leaves the length of its answer to the server, and is not queued.
absl::StatusOr<Request> PromptOf(const v1::TokenizeRequest& message) {
  Request request;
  request.id = "tokenize";
  request.stopping.fit_max_tokens = true;
  request.output.ids = true;
  request.parse_special = message.parse_special();
  if (message.has_add_beginning()) request.add_beginning = message.add_beginning();
  switch (message.prompt_case()) {
    case v1::TokenizeRequest::kText:
      request.prompt = message.text();
      return request;
    case v1::TokenizeRequest::kChat: {
      ASSIGN_OR_RETURN(request.prompt, ToChat(message.chat()));
      return request;
    }
    case v1::TokenizeRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "one of text and chat must be set");
}

std::span<const int32_t> IdsOf(const google::protobuf::RepeatedField<int32_t>& ids) {
  return {ids.data(), static_cast<size_t>(ids.size())};
}

void SetTexts(TokenReadings in, v1::TokenTexts& out) {
  out.set_text(std::move(in.text));
  out.mutable_ends()->Add(in.ends.begin(), in.ends.end());
  out.mutable_special()->Add(in.special.begin(), in.special.end());
}

}  // namespace

int64_t TokenizeCost(const v1::TokenizeRequest& message) {
  const size_t bytes = message.text().size() + message.chat().ByteSizeLong();
  return static_cast<int64_t>(bytes) / kTextBytesPerToken;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& message,
                                              const Engine& engine) {
  ASSIGN_OR_RETURN(auto request, PromptOf(message));
  ASSIGN_OR_RETURN(const auto prepared, engine.Prepare(std::move(request)));
  v1::TokenizeResponse response;
  response.set_model(engine.info().model_name);
  response.mutable_token_ids()->Add(prepared.prompt.begin(), prepared.prompt.end());
  if (!message.token_texts()) return response;
  ASSIGN_OR_RETURN(auto read, engine.Detokenize(prepared.prompt, /*special_tokens=*/false));
  SetTexts(std::move(read.tokens), *response.mutable_token_texts());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& message,
                                                  const Engine& engine) {
  const auto ids = IdsOf(message.token_ids().ids());
  ASSIGN_OR_RETURN(auto read, engine.Detokenize(ids, message.special_tokens()));
  v1::DetokenizeResponse response;
  response.set_model(engine.info().model_name);
  response.set_text(std::move(read.text));
  if (message.token_texts()) SetTexts(std::move(read.tokens), *response.mutable_token_texts());
  return response;
}

}  // namespace eta
