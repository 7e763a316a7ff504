// lint: fuzz-covered
#include "service/telemetry/page/page_writer.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "service/telemetry/page/metric_catalogue.h"

namespace eta {
namespace {

void AppendNumber(std::string& out, int64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

// The shortest text that reads back as the same number.
void AppendNumber(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    char digits[40];
    out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  }
}

void AppendEscaped(std::string& out, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
}

}  // namespace

LabelText& LabelText::Add(std::string_view name, std::string_view value) {
  if (!text_.empty()) text_ += ',';
  text_ += name;
  text_ += "=\"";
  AppendEscaped(text_, value);
  text_ += '"';
  return *this;
}

LabelText& LabelText::Add(std::string_view name, int64_t value) {
  return Add(name, absl::StrCat(value));
}

PageWriter::PageWriter(std::string& page, std::string_view model)
    : page_(page),
      model_label_(LabelText().Add("model", model).text()),
      has_model_(!model.empty()) {}

void PageWriter::Family(std::string_view name) {
  const Metric* const metric = FindMetric(name);
  if (metric == nullptr) std::abort();
  family_ = metric->name;
  with_model_ = metric->labels.starts_with("model");
  for (const std::string_view part :
       {std::string_view("# HELP "), family_, std::string_view(" "), metric->help,
        std::string_view("\n# TYPE "), family_, std::string_view(" "), Name(metric->type),
        std::string_view("\n")}) {
    page_ += part;
  }
}

bool PageWriter::Begin(std::string_view labels) {
  if (with_model_ && !has_model_) return false;
  labels_.clear();
  if (with_model_) labels_ += model_label_;
  if (with_model_ && !labels.empty()) labels_ += ',';
  labels_ += labels;
  return true;
}

template <typename Number>
void PageWriter::Line(std::string_view suffix, Number value) {
  (page_ += family_) += suffix;
  if (!labels_.empty()) ((page_ += '{') += labels_) += '}';
  page_ += ' ';
  AppendNumber(page_, value);
  page_ += '\n';
}

void PageWriter::Sample(const LabelText& labels, double value) {
  if (Begin(labels.text())) Line("", value);
}

void PageWriter::WriteInteger(std::string_view labels, int64_t value) {
  if (Begin(labels)) Line("", value);
}

void PageWriter::Sample(const LabelText& labels, const Histogram& histogram) {
  if (!Begin(labels.text())) return;
  // What the lines of all buckets begin with.
  std::string start;
  ((start += family_) += "_bucket{") += labels_;
  start += labels_.empty() ? "le=\"" : ",le=\"";
  int64_t below = 0;
  const Buckets& buckets = histogram.buckets();
  for (size_t i = 0; i < buckets.text.size(); ++i) {
    below += histogram.InBucket(i);
    ((page_ += start) += buckets.text[i]) += "\"} ";
    AppendNumber(page_, below);
    page_ += '\n';
  }
  Line("_sum", histogram.sum());
  Line("_count", histogram.count());
}

}  // namespace eta
