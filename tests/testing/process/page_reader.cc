#include "tests/testing/process/page_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace eta::testing {
namespace {

// Reads name="value",... up to the closing brace. `at` then points to the brace.
Labels ReadLabels(const std::string& line, size_t& at) {
  Labels labels;
  while (at < line.size() && line[at] != '}') {
    const size_t equals = line.find("=\"", at);
    if (equals == std::string::npos) break;
    const std::string name = line.substr(at, equals - at);
    std::string value;
    for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] == '\\') ++at;
      value += line[at] == 'n' && line[at - 1] == '\\' ? '\n' : line[at];
    }
    EXPECT_TRUE(labels.emplace(name, value).second) << "label twice: " << line;
    ++at;
    if (at < line.size() && line[at] == ',') ++at;
  }
  EXPECT_EQ(at < line.size() ? line[at] : '?', '}') << line;
  return labels;
}

bool Contains(const Labels& labels, const Labels& wanted) {
  return std::includes(labels.begin(), labels.end(), wanted.begin(), wanted.end());
}

}  // namespace

PageReader::PageReader(const std::string& page) {
  EXPECT_TRUE(page.empty() || page.back() == '\n');
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, rest;
    words >> hash >> kind >> name;
    if (hash != "#") {
      ReadSample(line);
      continue;
    }
    std::getline(words >> std::ws, rest);
    if (kind == "HELP") {
      EXPECT_FALSE(families_.contains(name)) << "family twice: " << name;
      families_[name].help = rest;
    } else {
      EXPECT_EQ(kind, "TYPE") << line;
      families_[name].type = rest;
    }
    current_ = name;
  }
}

void PageReader::ReadSample(const std::string& line) {
  size_t at = line.find_first_of("{ ");
  ASSERT_NE(at, std::string::npos) << line;
  const std::string name = line.substr(0, at);
  Labels labels;
  if (line[at] == '{') labels = ReadLabels(line, ++at);
  char* end = nullptr;
  const std::string number = line.substr(line.find(' ', at) + 1);
  const double value = std::strtod(number.c_str(), &end);
  ASSERT_TRUE(!number.empty() && *end == '\0') << line;

  PageFamily& family = families_[current_];
  bool added;
  if (family.type == "summary" && name != current_) {
    EXPECT_TRUE(name == current_ + "_sum" || name == current_ + "_count") << line;
    added = (name.ends_with("_sum") ? family.sums : family.counts).emplace(labels, value).second;
  } else if (family.type != "histogram") {
    EXPECT_EQ(name, current_) << line;
    added = family.samples.emplace(labels, value).second;
  } else if (name == current_ + "_sum") {
    added = family.sums.emplace(labels, value).second;
  } else if (name == current_ + "_count") {
    added = family.counts.emplace(labels, value).second;
  } else {
    EXPECT_EQ(name, current_ + "_bucket") << line;
    const std::string bound = labels["le"];
    labels.erase("le");
    family.buckets[labels].emplace_back(bound, value);
    added = true;
  }
  EXPECT_TRUE(added) << "series twice: " << line;
}

bool PageReader::Has(const std::string& name, const Labels& labels) const {
  const auto family = families_.find(name);
  return family != families_.end() && family->second.samples.contains(labels);
}

double PageReader::Value(const std::string& name, const Labels& labels) const {
  EXPECT_TRUE(Has(name, labels)) << name << ::testing::PrintToString(labels);
  return Has(name, labels) ? families_.at(name).samples.at(labels) : -1.0;
}

double PageReader::Count(const std::string& name, const Labels& labels) const {
  const auto family = families_.find(name);
  const bool has = family != families_.end() && family->second.counts.contains(labels);
  EXPECT_TRUE(has) << name << ::testing::PrintToString(labels);
  return has ? family->second.counts.at(labels) : -1.0;
}

double PageReader::Sum(const std::string& name, const Labels& labels) const {
  double sum = 0.0;
  const auto family = families_.find(name);
  EXPECT_NE(family, families_.end()) << name;
  if (family == families_.end()) return sum;
  for (const auto& [series, value] : family->second.samples) {
    if (Contains(series, labels)) sum += value;
  }
  return sum;
}

}  // namespace eta::testing
