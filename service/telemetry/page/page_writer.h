// Writes the text format that Prometheus reads (version 0.0.4), in the order of the calls. The
// families' types and help stand in the catalogue.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "service/telemetry/histogram.h"

namespace eta {

// Labels of a series, rendered: `mode="full",profile="none"`.
class LabelText {
 public:
  LabelText& Add(std::string_view name, std::string_view value);
  LabelText& Add(std::string_view name, int64_t value);
  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

class PageWriter {
 public:
  // Appends to `page`, which must outlive it. Families of which the catalogue says that they have
  // the label `model` get it; without a model they have no samples.
  PageWriter(std::string& page, std::string_view model);

  // Begins a family of the catalogue; what follows are its samples. Ends the program for a name
  // that the catalogue does not have.
  void Family(std::string_view name);

  void Sample(double value) { Sample(LabelText(), value); }
  void Sample(const LabelText& labels, double value);
  template <std::integral T>
  void Sample(T value) {
    Sample(LabelText(), value);
  }
  template <std::integral T>
  void Sample(const LabelText& labels, T value) {
    WriteInteger(labels.text(), static_cast<int64_t>(value));
  }
  void Sample(const LabelText& labels, const Histogram& histogram);

 private:
  // False: the sample is left out.
  bool Begin(std::string_view labels);
  template <typename Number>
  void Line(std::string_view suffix, Number value);  // with labels_
  void WriteInteger(std::string_view labels, int64_t value);

  std::string& page_;
  std::string model_label_;
  bool has_model_;
  std::string_view family_;
  bool with_model_ = false;
  std::string labels_;  // of the sample at hand, with the model's
};

}  // namespace eta
