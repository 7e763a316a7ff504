// TOKENIZER KIND, then a prompt as text, as token ids or as a chat: what Prepare makes of it for
// models of several tokenizers. Refused in a readable sentence that names a field, or at least one
// token, all of the vocabulary and within the context, the same each time; and of a chat no marker
// that its template did not write.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/front/chat_prompts.h"
#include "engine/front/request_intake.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/engine/piece_file.h"
#include "tests/testing/engine/tokenizer_json.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;
using Json = nlohmann::json;

constexpr int32_t kVocabulary = 300;
constexpr int32_t kContext = 200;
constexpr char kSpelled[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}";
constexpr char kBuilt[] =
    "{% for m in messages %}{{ '<|im_' ~ 'start|>' ~ m['role'] }}{{ m['content'] | trim }}"
    "{{ '<|im_{}|>'.format('end') }}{% endfor %}";
constexpr char kBare[] = "{% for m in messages %}{{ m['content'] }}{% endfor %}";

// What the engine has of a model, without its weights.
class Model {
 public:
  Model(eta::TokenizerFiles files, eta::ModelConfig config) {
    config.vocab_size = kVocabulary;
    info_.config = config;
    tokenizer_ = *eta::Tokenizer::Load(files, config);
    chats_ = *eta::ChatPrompts::Create({.of_model = files.chat_template, .given = {}}, *tokenizer_);
    info_.max_token_bytes = tokenizer_->max_token_bytes();
    info_.chat_refusal = chats_->refusal();
    limits_.max_context = kContext;
    for (const char* marker : {"<|im_start|>", "<|im_end|>"}) {
      for (int32_t id = 0; id < kVocabulary; ++id) {
        if (tokenizer_->TokenText(id) == marker) markers_.push_back(id);
      }
    }
    intake_ = std::make_unique<eta::RequestIntake>(info_, limits_, *tokenizer_, *chats_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  absl::StatusOr<eta::PreparedRequest> Prepare(const eta::Request& request) const {
    return intake_->Prepare(request);
  }
  int64_t Markers(const std::vector<int32_t>& prompt) const {
    return std::count_if(prompt.begin(), prompt.end(), [this](int32_t id) {
      return std::find(markers_.begin(), markers_.end(), id) != markers_.end();
    });
  }

 private:
  eta::EngineInfo info_{};
  eta::Limits limits_;
  std::unique_ptr<eta::Tokenizer> tokenizer_;
  std::unique_ptr<eta::ChatPrompts> chats_;
  std::unique_ptr<eta::RequestIntake> intake_;
  std::vector<int32_t> markers_;
};

std::vector<std::string> Letters() {
  std::vector<std::string> tokens;
  for (char c = ' '; c <= '~'; ++c) tokens.emplace_back(1, c);
  return tokens;
}

// Bytes as byte-level vocabularies spell them, without those of control characters.
Model BytesWithGaps() {
  std::vector<std::string> tokens = Letters();
  tokens[0] = "\xC4\xA0";
  eta::TokenizerJson file(tokens, {});
  file.root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  file.root["decoder"] = {{"type", "ByteLevel"}};
  for (int i = 0; i < 2; ++i) {
    file.Add(i == 0 ? "<|im_start|>" : "<|im_end|>", 200 + i, {{"special", true}});
  }
  return {{.tokenizer_json = file.Dump(), .chat_template = kSpelled}, {}};
}

// Parts that leave text out, markers that are ordinary added tokens, and no token for the rest.
Model WhatIsLeftOut() {
  eta::TokenizerJson file(Letters(), {});
  file.root["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  file.root["pre_tokenizer"] = {{"type", "Split"},
                                {"pattern", {{"String", "-"}}},
                                {"behavior", "Removed"},
                                {"invert", false}};
  file.Add("<|im_start|>", 200);
  file.Add("<|im_end|>", 201, {{"normalized", true}});
  file.Add("  ", 202);
  return {{.tokenizer_json = file.Dump(), .chat_template = kBuilt}, {}};
}

Model Unknown() {
  std::vector<std::string> tokens = Letters();
  tokens.emplace_back("<unk>");
  eta::TokenizerJson file(tokens, {});
  file.root["model"]["unk_token"] = "<unk>";
  file.root["model"]["fuse_unk"] = true;
  return {{.tokenizer_json = file.Dump(), .chat_template = kBare}, {}};
}

Model Pieces(bool byte_fallback, bool dummy_prefix, const char* chat_template) {
  eta::PieceFile file{.byte_fallback = byte_fallback, .dummy_prefix = dummy_prefix, .entries = {}};
  file.entries = {{"<|im_start|>", 0, 4}, {"<|im_end|>", 0, 4}, {"a", -1, 1}, {"ab", -2, 1}};
  eta::ModelConfig config;
  config.eos_ids = {2};
  return {{.sentencepiece_model = file.Serialize(), .chat_template = chat_template}, config};
}

eta::ModelConfig BeginsWith(int32_t id) {
  eta::ModelConfig config;
  config.bos_id = id;
  return config;
}

const Model& TheModel(uint8_t which) {
  static const std::array<Model, 6> kModels = {BytesWithGaps(),
                                               WhatIsLeftOut(),
                                               Unknown(),
                                               Pieces(false, false, kBuilt),
                                               Pieces(true, true, kSpelled),
                                               Model({}, BeginsWith(1))};
  return kModels[which % kModels.size()];
}

eta::Request Read(eta::fuzz::InputReader& reader) {
  eta::Request request;
  request.id = "fuzz";
  request.deadline = eta::Clock::time_point::max();
  request.stopping.max_tokens = 1 + reader.Byte() % 16;
  request.output.ids = true;
  switch (reader.Byte() % 3) {
    case 0:
      request.parse_special = reader.Bool();
      request.prompt = std::string(reader.rest());
      break;
    case 1: {
      std::vector<int32_t> ids;
      while (!reader.empty()) ids.push_back(reader.Int(-1, kVocabulary));
      request.prompt = std::move(ids);
      break;
    }
    default: {
      eta::Chat chat;
      chat.add_generation_prompt = reader.Bool();
      while (!reader.empty()) {
        chat.messages.push_back({.role = reader.Pick({"system", "user", "assistant", "tool"}),
                                 .content = std::string(reader.Text()),
                                 .name = {},
                                 .tool_call_id = {}});
      }
      request.prompt = std::move(chat);
    }
  }
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  eta::fuzz::InputReader reader(data, size);
  const Model& model = TheModel(reader.Byte());
  const eta::Request request = Read(reader);
  const auto prepared = model.Prepare(request);
  if (!prepared.ok()) {
    eta::fuzz::RequireReadable(prepared.status());
    Require(absl::IsInvalidArgument(prepared.status()) ||
            absl::IsFailedPrecondition(prepared.status()));
    Require(!eta::GetErrorDetail(prepared.status()).reason.empty());
    return 0;
  }
  const std::vector<int32_t>& prompt = prepared->prompt;
  Require(!prompt.empty());
  for (const int32_t id : prompt) Require(id >= 0 && id < kVocabulary);
  Require(prepared->prompt_tokens() + request.stopping.max_tokens <= kContext);
  const auto again = model.Prepare(request);
  Require(again.ok() && again->prompt == prompt);
  if (const auto* chat = std::get_if<eta::Chat>(&request.prompt)) {
    eta::Request silent = request;
    eta::Chat said = *chat;
    for (eta::ChatMessage& message : said.messages) message.content = "a";
    silent.prompt = said;
    const auto own = model.Prepare(silent);
    if (own.ok()) Require(model.Markers(own->prompt) == model.Markers(prompt));
    said.messages.front().role = "nobody";
    silent.prompt = std::move(said);
    eta::fuzz::RequireReadable(model.Prepare(silent).status());
  }
  return 0;
}
