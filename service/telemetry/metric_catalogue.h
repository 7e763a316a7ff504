// Every metric of the Prometheus page: the page is made from this table, and deploy/metrics.md is
// it
// (`eta-server --print_metrics`).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "prometheus/metric_type.h"

namespace eta {

std::string_view Name(prometheus::MetricType type);

struct Metric {
  std::string_view name;
  prometheus::MetricType type;
  std::string_view labels;  // by comma, in the order of the page; without `le`
  std::string_view unit;
  std::string_view help;
};

struct MetricGroup {
  std::string_view title;
  std::span<const Metric> metrics;
};

std::span<const MetricGroup> MetricCatalogue();

// The same series under a name that endpoint pickers of inference gateways know (--metrics_names);
// its label `model` is `model_name` there.
struct MetricAlias {
  std::string_view name;
  std::string_view of;
};

std::span<const MetricAlias> VllmNames();

// Null: the catalogue has no such metric.
const Metric* FindMetric(std::string_view name);

// As Markdown, a table for each group.
std::string MetricCatalogueMarkdown();

}  // namespace eta
