#include "training/adaptation/threshold_fit.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

namespace eta::training {
namespace {

// A score lies at most at its row's log-sum-exp; what lies 20 below weighs nothing.
constexpr int kBins = 800;
constexpr double kBinWidth = 0.025;
// The products of more dimensions take longer than they are worth before training.
constexpr size_t kMaxRegressed = 1152;
constexpr double kRidge = 0.01;  // of the mean square of a query's element

// Solves A x = b for the columns of b in place, A [n, n] symmetric and positive (Cholesky).
void SolveInPlace(std::vector<double>& a, std::vector<double>& b, size_t n, size_t columns) {
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    for (size_t i = 0; i < n; ++i) {
      double sum = b[i * columns + c];
      for (size_t k = 0; k < i; ++k) sum -= a[i * n + k] * b[k * columns + c];
      b[i * columns + c] = sum / a[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
      double sum = b[i * columns + c];
      for (size_t k = i + 1; k < n; ++k) sum -= a[k * n + i] * b[k * columns + c];
      b[i * columns + c] = sum / a[i * n + i];
    }
  }
}

}  // namespace

ThresholdFit::ThresholdFit(const FitShape& shape, int32_t rows_per_sequence, int threads)
    : shape_(shape),
      rows_per_sequence_(rows_per_sequence),
      threads_(threads),
      regress_(shape.query_dim() <= kMaxRegressed) {
  const size_t n = shape_.query_dim() + 1;
  const auto heads = static_cast<size_t>(shape_.num_query_heads);
  if (regress_) products_.resize(n * n);
  targets_.resize(n * heads);
  histogram_.resize(heads * kBins);
}

double ThresholdFit::Scores(std::span<const float> query, std::span<const float> keys, size_t head,
                            size_t count, std::vector<double>& scores) {
  const auto d = static_cast<size_t>(shape_.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  scores.resize(count);
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t s = 0; s < count; ++s) {
    const float* key = keys.data() + s * shape_.key_dim();
    float sum = 0.0f;
    for (size_t i = 0; i < d; ++i) sum += query[i] * key[i];
    scores[s] = scale * static_cast<double>(sum);
    largest = std::max(largest, scores[s]);
  }
  double total = 0.0;
  for (const double score : scores) total += std::exp(score - largest);
  const double lse = largest + std::log(total);
  double* bins = histogram_.data() + head * kBins;
  for (const double score : scores) {
    const int bin = static_cast<int>((lse - score) / kBinWidth);
    if (bin < kBins) bins[std::max(bin, 0)] += std::exp(score - lse);
  }
  return lse;
}

void ThresholdFit::Add(std::span<const float> q, std::span<const float> k) {
  const size_t n = shape_.query_dim();
  const size_t length = q.size() / n;
  const auto heads = static_cast<size_t>(shape_.num_query_heads);
  const auto d = static_cast<size_t>(shape_.head_dim);
  const size_t group = heads / static_cast<size_t>(shape_.num_kv_heads);
  const size_t rows = std::min<size_t>(length, static_cast<size_t>(rows_per_sequence_));
  const auto position = [&](size_t row) { return (row + 1) * length / rows - 1; };

  std::vector<double> lse(rows * heads);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    std::vector<double> scores;
    for (size_t head = next++; head < heads; head = next++) {
      const std::span<const float> keys = k.subspan(head / group * d);
      for (size_t row = 0; row < rows; ++row) {
        const size_t t = position(row);
        lse[row * heads + head] = Scores(q.subspan(t * n + head * d, d), keys, head, t + 1, scores);
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads_; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();

  rows_ += static_cast<double>(rows);
  std::vector<double> features(n + 1, 1.0);
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const float> query = q.subspan(position(row) * n, n);
    std::ranges::copy(query, features.begin());
    for (size_t i = regress_ ? 0 : n; i <= n; ++i) {
      for (size_t h = 0; h < heads; ++h)
        targets_[i * heads + h] += features[i] * lse[row * heads + h];
      if (!regress_) continue;
      double* products = products_.data() + i * (n + 1);
      for (size_t j = 0; j <= i; ++j) products[j] += features[i] * features[j];
    }
  }
}

// How far below its log-sum-exp a threshold lies that keeps the mass.
double ThresholdFit::Offset(size_t head, double mass) const {
  const auto bins = std::span(histogram_).subspan(head * kBins, kBins);
  double kept = 0.0;
  for (int bin = 0; bin < kBins; ++bin) {
    kept += bins[static_cast<size_t>(bin)];
    if (kept >= mass * rows_) return (bin + 1) * kBinWidth;
  }
  return kBins * kBinWidth;
}

LinearThresholds ThresholdFit::Solve(double mass) const {
  const size_t n = shape_.query_dim();
  const auto heads = static_cast<size_t>(shape_.num_query_heads);
  std::vector<double> solution(targets_);  // [n + 1, HQ]
  if (regress_) {
    std::vector<double> products = products_;
    double square = 0.0;
    for (size_t i = 0; i < n; ++i) square += products[i * (n + 1) + i];
    // The last one, the bias, is not drawn to 0.
    const double ridge = kRidge * square / static_cast<double>(n) + 1e-12;
    for (size_t i = 0; i < n; ++i) products[i * (n + 1) + i] += ridge;
    SolveInPlace(products, solution, n + 1, heads);
  } else {
    for (size_t h = 0; h < heads; ++h) solution[n * heads + h] /= rows_;
  }
  LinearThresholds thresholds = {.weight = std::vector<float>(heads * n),
                                 .bias = std::vector<float>(heads)};
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; regress_ && i < n; ++i) {
      thresholds.weight[h * n + i] = static_cast<float>(solution[i * heads + h]);
    }
    thresholds.bias[h] = static_cast<float>(solution[n * heads + h] - Offset(h, mass));
  }
  return thresholds;
}

}  // namespace eta::training
