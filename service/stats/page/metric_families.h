// Collects the samples of a page, family by family in the order of the calls. The families' types,
// labels and help stand in the catalogue.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "service/telemetry/histogram.h"

namespace eta {

class MetricFamilies {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Families of which the catalogue says that they have the label `model` get it; without a model
  // they have no samples.
  explicit MetricFamilies(std::string_view model) : model_(model) {}

  // Begins a family of the catalogue; what follows are its samples. Ends the program for a name
  // that the catalogue does not have.
  void Begin(std::string_view name);

  void Add(Labels labels, double value);
  template <std::integral T>
  void Add(Labels labels, T value) {
    Add(labels, static_cast<double>(value));
  }
  void Add(Labels labels, const Histogram& histogram);

  // A family of one sample, without labels but for the model.
  template <typename Value>
  void AddOnly(std::string_view name, const Value& value) {
    Begin(name);
    Add({}, value);
  }

  std::vector<prometheus::MetricFamily> Release() { return std::move(families_); }

 private:
  // Null: the sample is left out.
  prometheus::ClientMetric* AddSample(Labels labels);

  const std::string model_;
  std::vector<prometheus::MetricFamily> families_;
  bool with_model_ = false;  // the family at hand
};

}  // namespace eta
