// A backend that forwards to another one, and gives known answers: a draw costs what it costs, and
// then its token is that of the answer. So what is accepted of drafts is what a model would have
// accepted that writes these answers.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/random.h"
#include "kernels/forwarding_backend.h"
#include "kernels/params/sampling.h"

namespace eta::bench {

class ReplayBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Draws of this seed give `answer`, token by token. A draw is known by its number, which seed and
  // index of the token make.
  void SetAnswer(uint64_t seed, std::span<const int32_t> answer) {
    for (size_t i = 0; i < answer.size(); ++i) {
      tokens_[std::bit_cast<uint64_t>(UniformDraw(seed, i))] = answer[i];
    }
  }

  void Sample(const SampleParams& params) override {
    ForwardingBackend::Sample(params);
    draws_.push_back(params.rows);
  }
  absl::Status Finish() override {
    const absl::Status status = ForwardingBackend::Finish();
    for (const std::span<SampleRow> rows : std::exchange(draws_, {})) {
      for (SampleRow& row : rows) {
        const auto found = tokens_.find(std::bit_cast<uint64_t>(row.uniform));
        if (row.forced < 0 && found != tokens_.end()) row.token = found->second;
      }
    }
    return status;
  }

 private:
  std::unordered_map<uint64_t, int32_t> tokens_;
  std::vector<std::span<SampleRow>> draws_;  // of the step
};

}  // namespace eta::bench
