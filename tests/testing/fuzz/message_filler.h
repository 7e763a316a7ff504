// Any message of the API out of a fuzzer's bytes: fields, presence and values as the bytes say.
// (libprotobuf-mutator is not packaged.)
#pragma once

#include "google/protobuf/message.h"
#include "tests/testing/fuzz/input_reader.h"

namespace eta::fuzz {

// Sets fields of `message` until the bytes end.
void FillMessage(InputReader& reader, google::protobuf::Message& message, int depth = 0);

// What a client sends as `message`. The first byte chooses: FillMessage, or the bytes as they are.
// False: they are no such message.
bool ReadMessage(InputReader& reader, google::protobuf::Message& message);

}  // namespace eta::fuzz
