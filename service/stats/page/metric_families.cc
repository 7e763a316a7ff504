// lint: fuzz-covered
#include "service/stats/page/metric_families.h"

#include <cstdlib>

#include "service/telemetry/metric_catalogue.h"

namespace eta {

void MetricFamilies::Begin(std::string_view name) {
  const Metric* const metric = FindMetric(name);
  if (metric == nullptr) std::abort();
  with_model_ = metric->labels.starts_with("model");
  families_.push_back({.name = std::string(name),
                       .help = std::string(metric->help),
                       .type = metric->type,
                       .metric = {}});
}

prometheus::ClientMetric* MetricFamilies::AddSample(Labels labels) {
  if (with_model_ && model_.empty()) return nullptr;
  prometheus::ClientMetric& sample = families_.back().metric.emplace_back();
  sample.label.reserve(labels.size() + 1);
  if (with_model_) sample.label.push_back({.name = "model", .value = model_});
  for (const auto& [name, value] : labels) {
    sample.label.push_back({.name = std::string(name), .value = std::string(value)});
  }
  return &sample;
}

void MetricFamilies::Add(Labels labels, double value) {
  prometheus::ClientMetric* const sample = AddSample(labels);
  if (sample == nullptr) return;
  if (families_.back().type == prometheus::MetricType::Counter) {
    sample->counter.value = value;
  } else {
    sample->gauge.value = value;
  }
}

void MetricFamilies::Add(Labels labels, const Histogram& histogram) {
  prometheus::ClientMetric* const sample = AddSample(labels);
  if (sample == nullptr) return;
  const std::vector<double>& bounds = histogram.buckets().upper;
  sample->histogram.sample_count = static_cast<uint64_t>(histogram.count());
  sample->histogram.sample_sum = histogram.sum();
  sample->histogram.bucket.reserve(bounds.size());
  uint64_t below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    below += static_cast<uint64_t>(histogram.InBucket(i));
    sample->histogram.bucket.push_back({.cumulative_count = below, .upper_bound = bounds[i]});
  }
}

}  // namespace eta
