// README.md of an exported model: what it is, how it was trained and what was measured of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training/evaluation/held_out.h"
#include "training/export/verdict.h"
#include "training/model/model_spec.h"

namespace eta::training {

struct ModelCard {
  std::string name;      // of the folder
  std::string original;  // that was adapted; empty: trained from scratch
  ModelConfig config;
  int64_t parameters = 0;
  std::string method;                                      // one sentence
  std::vector<std::pair<std::string, std::string>> facts;  // of the training, in order
  std::vector<std::string> texts;                          // that it was trained on
  int32_t context = 0;                                     // of the measurement
  int32_t prefill = 0;
  bool served = true;                     // whether the server runs this kind of attention
  std::optional<HeldOutResult> measured;  // absent: there was no text for it
  bool tested = false;                    // on text of --test, in place of --held_out
  std::optional<HeldOutResult> dense;     // the original with full attention, on the same text
  std::optional<Verdict> verdict;         // absent: no bounds were asked for
};

std::string ModelCardText(const ModelCard& card);

}  // namespace eta::training
