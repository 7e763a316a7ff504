// The built server with a tiny model that has a chat template, and requests of chats.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/service/replica.h"

namespace eta::testing {

inline v1::ChatMessage& AddMessage(v1::GenerateRequest& request, v1::ChatRole role,
                                   const std::string& text) {
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_text(text);
  return message;
}

// A greedy request for a few tokens.
inline v1::GenerateRequest Say(const std::string& text) {
  v1::GenerateRequest request;
  AddMessage(request, v1::CHAT_ROLE_USER, text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(4);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

class ChatServer {
 public:
  explicit ChatServer(const std::vector<std::string>& more = {}, TinyModelOptions options = Plain())
      : model_(options), server_(model_.path(), "", more) {}

  static TinyModelOptions Plain() { return {.chat_template = kTinyChatTemplate}; }

  struct Answer {
    grpc::Status status;
    std::string text;
    v1::Started started;
    v1::Finished finished;
  };
  Answer Ask(const v1::GenerateRequest& request) {
    Answer answer;
    ClientCall call(*server_.stub);
    call.Start(request);
    answer.started = call.Read().started();
    answer.text = call.ReadText();
    answer.status = call.Finish();
    answer.finished = call.finished;
    return answer;
  }

  Replica& server() { return server_; }

 private:
  const TinyModel model_;
  Replica server_;
};

}  // namespace eta::testing
