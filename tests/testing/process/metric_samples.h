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
  // Lines that are no samples are left out: promtool judges the format.
  explicit MetricSamples(const std::string& page);

  // Sum over the series that have these labels, whatever others they have; 0 if there are none.
  // Labels with an empty value are ones that the series must not have.
  double Sum(const std::string& name, const MetricLabels& labels = {}) const;
  std::vector<Sample> Find(const std::string& name, const MetricLabels& labels = {}) const;
  const std::vector<Sample>& all() const { return samples_; }

  // Families (histograms as one) that nobody has asked for yet.
  std::vector<std::string> Unread() const;

 private:
  std::vector<Sample> samples_;
  std::set<std::string> families_;
  mutable std::set<std::string> read_;
};

}  // namespace eta::testing
