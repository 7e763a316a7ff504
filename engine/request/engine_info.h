// What an engine serves and what it has reserved for it: set at its start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/chat/tools/answer_form.h"
#include "engine/checkpoint/tokenizer_files.h"
#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace eta {

struct EngineInfo {
  std::string model_name;
  std::string model_fingerprint;      // ModelFingerprint: over weights, tokenizer and config
  std::string tokenizer_fingerprint;  // Checkpoint's
  ModelConfig config;                 // its index: as served
  // What the tokenizer was made from, with the template of chats that counts; null: not kept.
  std::shared_ptr<const TokenizerFiles> tokenizer_files;
  std::vector<int32_t> beginning;  // ids before every text (Tokenizer::beginning)
  std::string backend;             // its description
  DType kv_dtype;
  DType index_dtype;
  IndexKind index = IndexKind::kMoment;  // as served: a flag may replace the model's
  bool index_metric = false;  // records of outliers are made with the model's index metric
  WeightFormat weights = WeightFormat::kNative;
  size_t max_token_bytes = 0;  // bytes of text that one token stands for at most; 0: any number
  int32_t block_size;          // b
  int32_t sub_block;
  int32_t num_blocks;       // pages of the cache: each of the layers of one group (layer_groups.h)
  int64_t pool_tokens = 0;  // of the longest sequence that they hold; of several devices their sum
  int32_t max_running = 0;  // sequences in one batch
  size_t left_out_tensors = 0;  // of the checkpoint: of its vision tower, which is not served
  size_t weight_bytes;
  size_t kv_bytes;
  bool prefix_cache = true;  // full blocks of prompts are shared between requests
  std::string chat_refusal;  // why no prompts are made of chats; empty: they are
  AnswerForm answer_form;    // how answers to chats call tools and reason
  // The model has a chat template that is not understood: chat_refusal says what.
  bool chat_template_refused = false;
};

}  // namespace eta
