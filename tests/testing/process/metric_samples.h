// A page of metrics in Prometheus' text format, as numbers.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace eta::testing {

using MetricLabels = std::map<std::string, std::string>;

class MetricSamples {
 public:
  struct Sample {
    std::string name;
    MetricLabels labels;
    double value = 0.0;
  };

  MetricSamples() = default;
  // Skips lines that are no samples; promtool judges the format.
  explicit MetricSamples(const std::string& page);

  // The sum over the series that have these labels, whatever other labels they have; 0 if there are
  // none. A label with an empty value must be absent from the series.
  double Sum(const std::string& name, const MetricLabels& labels = {}) const;
  std::vector<Sample> Find(const std::string& name, const MetricLabels& labels = {}) const;
  const std::vector<Sample>& all() const { return samples_; }

  // The families (a histogram is one) that no test has asked for yet.
  std::vector<std::string> Unread() const;

 private:
  std::vector<Sample> samples_;
  std::set<std::string> families_;
  mutable std::set<std::string> read_;
};

}  // namespace eta::testing
