// A test of training data: a folder of its own, texts in it, and the tokenizer of the embedded
// model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/testing/base/temp_folder.h"
#include "training/data/training_data.h"

namespace eta::training {

class TextCase : public ::testing::Test {
 protected:
  TextCase() {
    const auto checkpoint = Checkpoint::Open(ETA_SOURCE_DIR "/models/eta-27m");
    fingerprint_ = checkpoint->tokenizer_fingerprint();
    tokenizer_ = *Tokenizer::Load(checkpoint->tokenizer_files(),
                                  *ParseModelConfig(checkpoint->config_json()));
    digest_ = *TokenizerDigest(fingerprint_, *tokenizer_);
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& contents) const {
    return folder_.Write(name, contents);
  }
  static std::string Sample() { return ETA_SOURCE_DIR "/deploy/samples/needle.txt"; }

  TokenCacheOptions CacheOptions() {
    return {.folder = Path("tokens"),
            .tokenizer_sha256 = digest_,
            .threads = 2,
            .note = [this](const std::string& note) { notes_.push_back(note); }};
  }
  absl::StatusOr<std::unique_ptr<TrainingData>> Open(DataOptions options) {
    if (options.texts.empty()) options.texts = {Sample()};
    options.cache = CacheOptions();
    return TrainingData::Open(options, *tokenizer_, fingerprint_);
  }

  std::string fingerprint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string digest_;
  std::vector<std::string> notes_;

 private:
  const TempFolder folder_;
};

}  // namespace eta::training
