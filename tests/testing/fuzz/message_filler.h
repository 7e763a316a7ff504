// Makes any message of the API from a fuzzer's bytes, which choose fields, presence and values.
// (libprotobuf-mutator is not packaged.)
#pragma once

#include "google/protobuf/message.h"
#include "tests/testing/fuzz/input_reader.h"

namespace eta::fuzz {

// Sets fields of `message` until the bytes end.
void FillMessage(InputReader& reader, google::protobuf::Message& message, int depth = 0);

// Makes a client's message. The first byte chooses between FillMessage and the raw bytes. False if
// the bytes are no such message.
bool ReadMessage(InputReader& reader, google::protobuf::Message& message);

}  // namespace eta::fuzz
