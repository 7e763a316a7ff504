// One call of Generate, from the request to the end of the answer.
#pragma once

#include <optional>

#include "eta/v1/service.grpc.pb.h"
#include "service/etactl/connection.h"
#include "service/etactl/generate/answer_display.h"

namespace eta::ctl {

struct AnswerEnd {
  grpc::Status status;
  bool interrupted = false;  // by Ctrl-C
  bool written = true;       // all that came could be written to standard output
};

// Sends the request and shows its answer. While it runs, Ctrl-C cancels it.
AnswerEnd AwaitAnswer(v1::EtaService::Stub& stub, const v1::GenerateRequest& request,
                      std::optional<double> deadline_seconds, CancelOnInterrupt& interrupt,
                      AnswerDisplay& display);

// Reports an answer that failed, on standard error. Returns the exit code of the process.
int ReportEnd(const AnswerEnd& end, bool json);

}  // namespace eta::ctl
