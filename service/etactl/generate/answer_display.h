// Shows an answer as it arrives: its text on standard output, its statistics on standard error.
#pragma once

#include <optional>
#include <string>

#include "engine/base/progress_line.h"
#include "eta/v1/generate.pb.h"
#include "service/etactl/generate/request.h"

namespace eta::ctl {

// The statistics line of an answer: "12 tokens, 81.3 tok/s, first after 9.20 s, ...".
std::string DescribeStatistics(const v1::Started& started, const v1::Finished& finished);

// Shows the events of one call in their order.
class AnswerDisplay {
 public:
  explicit AnswerDisplay(const GenerateFlags& flags);

  // False if standard output cannot be written to.
  bool Show(const v1::GenerateResponse& response);
  // After the last event: ends the line, and shows the statistics of an answer that finished.
  void End();

  const std::string& text() const { return text_; }  // of the answer so far
  const std::string& reasoning() const { return reasoning_; }
  // Of the end; absent: it has none.
  const std::optional<v1::Finished>& finished() const { return finished_; }

 private:
  void ShowText(const std::string& text);
  void ShowReasoning(const std::string& text);
  void ShowCalls();

  const bool json_;
  const bool quiet_;
  const bool greedy_;
  const bool safe_text_;
  ProgressLine progress_;
  v1::Started started_;
  std::optional<v1::Finished> finished_;
  std::string text_;
  std::string reasoning_;
  bool ends_line_ = true;
  bool reasons_ = false;  // a line of standard error is reasoning
};

}  // namespace eta::ctl
