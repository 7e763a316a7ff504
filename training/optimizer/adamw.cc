#include "training/optimizer/adamw.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace eta::training {

AdamW::AdamW(const AdamWOptions& options, Parameters& parameters)
    : options_(options), parameters_(parameters) {}

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(const AdamWOptions& options,
                                                     Parameters& parameters) {
  if (parameters.layout().trained_count() == 0) {
    return absl::InvalidArgumentError("optimizer: the model has nothing that is trained");
  }
  auto adamw = std::unique_ptr<AdamW>(new AdamW(options, parameters));
  for (std::unique_ptr<Buffer>* moment : {&adamw->first_, &adamw->second_}) {
    ASSIGN_OR_RETURN(*moment,
                     parameters.backend().Allocate(
                         static_cast<size_t>(parameters.layout().trained_count()) * sizeof(float)));
    parameters.backend().Zero((*moment)->data(), (*moment)->size());
  }
  return adamw;
}

double AdamW::GradientNorm() const {
  return std::sqrt(parameters_.backend().SumSquares(parameters_.gradients(),
                                                    parameters_.layout().trained_count()));
}

void AdamW::Step(double rate, double norm) {
  TrainingBackend& backend = parameters_.backend();
  ++steps_;
  const double scale =
      options_.max_norm > 0.0 && norm > options_.max_norm ? options_.max_norm / norm : 1.0;
  auto* rounded = static_cast<std::byte*>(parameters_.rounded_copy());
  const auto element = static_cast<int64_t>(SizeOf(backend.activation_dtype()));
  for (const ParameterRun& run : parameters_.layout().trained_runs()) {
    backend.AdamW({.values = parameters_.values() + run.begin,
                   .gradients = parameters_.gradients() + run.begin,
                   .first = first_->as<float>() + run.begin,
                   .second = second_->as<float>() + run.begin,
                   .rounded = rounded == nullptr ? nullptr : rounded + run.begin * element,
                   .count = run.end - run.begin,
                   .step = steps_,
                   .rate = static_cast<float>(rate),
                   .beta1 = static_cast<float>(options_.beta1),
                   .beta2 = static_cast<float>(options_.beta2),
                   .epsilon = static_cast<float>(options_.epsilon),
                   .weight_decay = run.decayed ? static_cast<float>(options_.weight_decay) : 0.0f,
                   .gradient_scale = static_cast<float>(scale)});
  }
}

AdamWState AdamW::ReadState() const {
  AdamWState state;
  state.steps = steps_;
  const auto read = [&](const Buffer& from, std::vector<float>& to) {
    to.resize(from.size() / sizeof(float));
    parameters_.backend().Download(to.data(), from.data(), from.size());
  };
  read(*first_, state.first);
  read(*second_, state.second);
  return state;
}

absl::Status AdamW::WriteState(const AdamWState& state) {
  const auto count = static_cast<size_t>(parameters_.layout().trained_count());
  if (state.first.size() != count || state.second.size() != count || state.steps < 0) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer: moments of ", state.first.size(),
                                                   " and ", state.second.size(),
                                                   " parameters, expected ", count));
  }
  steps_ = state.steps;
  parameters_.backend().Upload(first_->data(), state.first.data(), first_->size());
  parameters_.backend().Upload(second_->data(), state.second.data(), second_->size());
  return absl::OkStatus();
}

}  // namespace eta::training
