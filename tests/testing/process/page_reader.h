// Reads a page in Prometheus' text format strictly: a line that it does not understand fails the
// test.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace eta::testing {

using Labels = std::map<std::string, std::string>;

struct PageFamily {
  std::string type;
  std::string help;
  std::map<Labels, double> samples;  // of counters, gauges, summaries
  std::map<Labels, std::vector<std::pair<std::string, double>>> buckets;  // le, in order
  std::map<Labels, double> sums;
  std::map<Labels, double> counts;
};

class PageReader {
 public:
  explicit PageReader(const std::string& page);

  const std::map<std::string, PageFamily>& families() const { return families_; }
  bool Has(const std::string& name, const Labels& labels) const;
  // Fails the test if there is no such series.
  double Value(const std::string& name, const Labels& labels) const;
  double Count(const std::string& name, const Labels& labels) const;  // of a histogram
  // The sum over all series whose labels include these.
  double Sum(const std::string& name, const Labels& labels = {}) const;

 private:
  void ReadSample(const std::string& line);

  std::map<std::string, PageFamily> families_;
  std::string current_;
};

}  // namespace eta::testing
