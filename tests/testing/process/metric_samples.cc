#include "tests/testing/process/metric_samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace eta::testing {
namespace {

// Reads name="value",... and the closing brace.
MetricLabels TakeLabels(absl::string_view* line) {
  MetricLabels labels;
  while (!line->empty() && line->front() != '}') {
    const size_t equals = line->find('=');
    if (equals == absl::string_view::npos) return labels;
    std::string& value = labels[std::string(line->substr(0, equals))];
    line->remove_prefix(equals + 2);
    while (!line->empty() && line->front() != '"') {
      if (line->front() == '\\') line->remove_prefix(1);
      value += line->front();
      line->remove_prefix(1);
    }
    line->remove_prefix(1);
    absl::ConsumePrefix(line, ",");
  }
  absl::ConsumePrefix(line, "}");
  return labels;
}

bool Has(const MetricLabels& labels, const MetricLabels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& pair) {
    const auto found = labels.find(pair.first);
    return found == labels.end() ? pair.second.empty() : found->second == pair.second;
  });
}

}  // namespace

MetricSamples::MetricSamples(const std::string& page) {
  for (absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) {
      families_.insert(std::string(line.substr(0, line.find(' '))));
    }
    if (line.front() == '#') continue;
    Sample sample;
    const size_t end = line.find_first_of("{ ");
    if (end == absl::string_view::npos) continue;
    sample.name = std::string(line.substr(0, end));
    line.remove_prefix(end);
    if (absl::ConsumePrefix(&line, "{")) sample.labels = TakeLabels(&line);
    if (absl::SimpleAtod(line, &sample.value)) samples_.push_back(std::move(sample));
  }
}

std::vector<MetricSamples::Sample> MetricSamples::Find(const std::string& name,
                                                       const MetricLabels& labels) const {
  read_.insert(name);
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    if (absl::string_view family = name; absl::ConsumeSuffix(&family, suffix)) {
      read_.insert(std::string(family));
    }
  }
  std::vector<Sample> found;
  std::copy_if(
      samples_.begin(), samples_.end(), std::back_inserter(found),
      [&](const Sample& sample) { return sample.name == name && Has(sample.labels, labels); });
  return found;
}

double MetricSamples::Sum(const std::string& name, const MetricLabels& labels) const {
  double sum = 0.0;
  for (const Sample& sample : Find(name, labels)) sum += sample.value;
  return sum;
}

std::vector<std::string> MetricSamples::Unread() const {
  std::vector<std::string> unread;
  std::set_difference(families_.begin(), families_.end(), read_.begin(), read_.end(),
                      std::back_inserter(unread));
  return unread;
}

}  // namespace eta::testing
