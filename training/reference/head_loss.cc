// Cross-entropy and divergence of the head, row by row, with their gradients:
// dz_v = ce_weight (p_v - [v = target]) + kl_weight (p_v - P_v).

#include <algorithm>
#include <cmath>
#include <vector>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

// Log-probabilities [V] of one row.
std::vector<double> LogSoftmax(const Tensor& hidden, const Tensor& head, int64_t r) {
  std::vector<double> logits(static_cast<size_t>(head.rows));
  for (int64_t v = 0; v < head.rows; ++v) {
    double sum = 0.0;
    for (int64_t i = 0; i < hidden.cols; ++i) sum += Get(hidden, r, i) * Get(head, v, i);
    logits[static_cast<size_t>(v)] = sum;
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const double logit : logits) total += std::exp(logit - largest);
  for (double& logit : logits) logit -= largest + std::log(total);
  return logits;
}

}  // namespace

void HeadLoss(const HeadLossParams& params) {
  const int64_t width = params.hidden.cols;
  const auto vocab = static_cast<size_t>(params.head.rows);
  std::vector<double> grad_head(params.grad_head != nullptr ? vocab * static_cast<size_t>(width)
                                                            : 0);
  for (int64_t r = 0; r < params.hidden.rows; ++r) {
    const auto at = static_cast<size_t>(r);
    const std::vector<double> logp = LogSoftmax(params.hidden, params.head, r);
    const int32_t target = params.targets[at];
    params.cross_entropy[r] =
        target < 0 ? 0.0f : static_cast<float>(-logp[static_cast<size_t>(target)]);
    if (params.hit != nullptr) {
      const auto largest = std::max_element(logp.begin(), logp.end()) - logp.begin();
      params.hit[r] = largest == target ? 1.0f : 0.0f;
    }
    const double ce_weight = target < 0 ? 0.0 : params.ce_weights[at];
    std::vector<double> grad(vocab);
    for (size_t v = 0; v < vocab; ++v) grad[v] = ce_weight * std::exp(logp[v]);
    if (target >= 0) grad[static_cast<size_t>(target)] -= ce_weight;
    if (!params.teacher_hidden.empty()) {
      const std::vector<double> teacher = LogSoftmax(params.teacher_hidden, params.teacher_head, r);
      double divergence = 0.0;
      for (size_t v = 0; v < vocab; ++v) {
        divergence += std::exp(teacher[v]) * (teacher[v] - logp[v]);
        grad[v] += params.kl_weights[at] * (std::exp(logp[v]) - std::exp(teacher[v]));
      }
      params.divergence[r] = static_cast<float>(divergence);
    }
    if (params.grad_hidden.empty()) continue;
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0.0;
      for (size_t v = 0; v < vocab; ++v)
        sum += grad[v] * Get(params.head, static_cast<int64_t>(v), i);
      Set(params.grad_hidden, r, i, sum);
    }
    for (size_t v = 0; v < vocab && !grad_head.empty(); ++v) {
      for (int64_t i = 0; i < width; ++i) {
        grad_head[v * static_cast<size_t>(width) + static_cast<size_t>(i)] +=
            grad[v] * Get(params.hidden, r, i);
      }
    }
  }
  for (size_t i = 0; i < grad_head.size(); ++i) {
    AddTo(params.grad_head, static_cast<int64_t>(i), grad_head[i]);
  }
}

}  // namespace eta::training::reference
