// Losses of the head over runs of rows: the logits of one run are in memory, and its gradients are
// added up before the next one.
// dz_v = ce_weight (p_v - [v = target]) + kl_weight (p_v - P_v).

#include <algorithm>
#include <cmath>

#include "training/cpu/ops.h"
#include "training/cpu/product.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {
namespace {

constexpr int64_t kMaxLogits = int64_t{1} << 23;  // of a run, 32 MiB

// Logits [vocab] to probabilities. Returns their log-sum-exp.
double Softmax(float* logits, int64_t vocab) {
  const float largest = Largest(logits, vocab);
  // Runs, so that the sum of a large vocabulary keeps float32's precision.
  constexpr int64_t kRun = 1024;
  double total = 0.0;
  for (int64_t i = 0; i < vocab; i += kRun) {
    total += static_cast<double>(ExpShifted(logits + i, largest, std::min(kRun, vocab - i)));
  }
  const auto inverse = static_cast<float>(1.0 / total);
  for (int64_t i = 0; i < vocab; ++i) logits[i] *= inverse;
  return largest + std::log(total);
}

// What the losses of row `r` and their gradients need; `student` [V] becomes the gradient of the
// logits, `teacher` [V] is null without one.
void LossOfRow(const HeadLossParams& params, int64_t r, float* student, float* teacher) {
  const int64_t vocab = params.head.rows;
  const auto at = static_cast<size_t>(r);
  const int32_t target = params.targets[at];
  const float target_logit = target < 0 ? 0.0f : student[target];
  if (params.hit != nullptr) {
    params.hit[r] = std::max_element(student, student + vocab) - student == target ? 1.0f : 0.0f;
  }
  const float ce_weight = target < 0 ? 0.0f : params.ce_weights[at];
  if (teacher == nullptr) {
    const double lse = Softmax(student, vocab);
    params.cross_entropy[r] = target < 0 ? 0.0f : static_cast<float>(lse - target_logit);
    for (int64_t v = 0; v < vocab; ++v) student[v] *= ce_weight;
  } else {
    // sum_v P_v (log P_v - log p_v) = sum_v P_v (teacher_v - student_v) - teacher's lse + student's
    const float kl_weight = params.kl_weights[at];
    const float student_largest = Largest(student, vocab);
    const float teacher_largest = Largest(teacher, vocab);
    double student_total = 0.0;
    double teacher_total = 0.0;
    double between = 0.0;
    for (int64_t v = 0; v < vocab; ++v) {
      const float s = student[v] - student_largest;
      const float t = teacher[v] - teacher_largest;
      const float p = std::exp(s);
      const float q = std::exp(t);
      student_total += p;
      teacher_total += q;
      between += static_cast<double>(q) * (static_cast<double>(t) - s);
      student[v] = p;
      teacher[v] = q;
    }
    const double difference = between / teacher_total + std::log(student_total / teacher_total);
    params.divergence[r] = static_cast<float>(difference);
    params.cross_entropy[r] =
        target < 0 ? 0.0f
                   : static_cast<float>(student_largest + std::log(student_total) - target_logit);
    const auto own = static_cast<float>((ce_weight + kl_weight) / student_total);
    const auto other = static_cast<float>(kl_weight / teacher_total);
    for (int64_t v = 0; v < vocab; ++v) student[v] = own * student[v] - other * teacher[v];
  }
  if (target >= 0) student[target] -= ce_weight;
}

void LogitsOf(const Context& context, const Tensor& hidden, const Tensor& head, int64_t begin,
              int64_t rows, float* out) {
  MultiplyOnAll(context.workers, rows, head.rows, hidden.cols, {Row(hidden, begin), hidden.stride},
                {head.as<float>(), head.stride, Transposed::kYes}, false, out, head.rows);
}

}  // namespace

void HeadLoss(const Context& context, const HeadLossParams& params) {
  const int64_t vocab = params.head.rows;
  const int64_t width = params.hidden.cols;
  const int64_t run = std::clamp<int64_t>(kMaxLogits / vocab, 16, 512);
  const bool teaches = !params.teacher_hidden.empty();
  auto* student =
      context.shared.Reserve<float>(static_cast<size_t>((teaches ? 2 : 1) * run * vocab));
  float* teacher = teaches ? student + run * vocab : nullptr;
  for (int64_t begin = 0; begin < params.hidden.rows; begin += run) {
    const int64_t rows = std::min(run, params.hidden.rows - begin);
    LogitsOf(context, params.hidden, params.head, begin, rows, student);
    if (teaches) {
      LogitsOf(context, params.teacher_hidden, params.teacher_head, begin, rows, teacher);
    }
    ForRanges(context, rows, 4, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r) {
        LossOfRow(params, begin + r, student + r * vocab, teaches ? teacher + r * vocab : nullptr);
      }
    });
    if (!params.grad_hidden.empty()) {
      MultiplyOnAll(context.workers, rows, width, vocab, {student, vocab},
                    {params.head.as<float>(), params.head.stride}, false,
                    Row(params.grad_hidden, begin), params.grad_hidden.stride);
    }
    if (params.grad_head == nullptr) continue;
    MultiplyOnAll(context.workers, vocab, width, rows, {student, vocab, Transposed::kYes},
                  {Row(params.hidden, begin), params.hidden.stride}, true, params.grad_head, width);
  }
}

}  // namespace eta::training::cpu
