#include "service/etactl/generate/answer_call.h"

#include <cstdio>

#include "service/etactl/error.h"

namespace eta::ctl {

AnswerEnd AwaitAnswer(v1::EtaService::Stub& stub, const v1::GenerateRequest& request,
                      std::optional<double> deadline_seconds, CancelOnInterrupt& interrupt,
                      AnswerDisplay& display) {
  grpc::ClientContext context;
  SetDeadline(deadline_seconds, &context);
  interrupt.Follow(&context);
  const auto reader = stub.Generate(&context, request);

  AnswerEnd end;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (end.written && !display.Show(response)) {
      end.written = false;
      context.TryCancel();
    }
  }
  end.status = reader->Finish();
  display.End();
  end.interrupted = interrupt.Follow(nullptr);
  return end;
}

int ReportEnd(const AnswerEnd& end, bool json) {
  if (end.interrupted) return kInterrupted;
  if (!end.written) {
    std::fprintf(stderr, "etactl: cannot write to standard output\n");
    return kLocalError;
  }
  return Report(end.status, json);
}

}  // namespace eta::ctl
