#!/usr/bin/python3
"""Answers the manuals' grpcurl examples where grpcurl is not installed (Debian 12 has no package):
the same flags, the same JSON in and out, one call.

  grpcurl [-plaintext] -import-path DIR -proto FILE [-d JSON | -d @] [-H 'KEY: VALUE'] HOST:PORT SERVICE/METHOD
"""

import argparse
import subprocess
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory


def descriptors(import_path, proto):
    with tempfile.NamedTemporaryFile() as compiled:
        subprocess.run(["protoc", "-I", import_path, "--include_imports",
                        f"--descriptor_set_out={compiled.name}", proto], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def main():
    parser = argparse.ArgumentParser(prog="grpcurl")
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-import-path", required=True)
    parser.add_argument("-proto", required=True)
    parser.add_argument("-d", default="{}")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("address")
    parser.add_argument("method")
    options = parser.parse_args()
    pool = descriptors(options.import_path, options.proto)
    service, name = options.method.split("/")
    method = pool.FindServiceByName(service).FindMethodByName(name)
    messages = message_factory.MessageFactory(pool)
    request = messages.GetPrototype(method.input_type)()
    json_format.Parse(sys.stdin.read() if options.d == "@" else options.d, request,
                      descriptor_pool=pool)
    call = grpc.insecure_channel(options.address).unary_stream(
        f"/{options.method}", lambda message: message.SerializeToString(),
        messages.GetPrototype(method.output_type).FromString)
    try:
        for answer in call(request, metadata=[tuple(pair.split(": ", 1)) for pair in options.H]):
            print(json_format.MessageToJson(answer, descriptor_pool=pool), flush=True)
    except grpc.RpcError as error:
        print(f"ERROR:\n  Code: {error.code().name}\n  Message: {error.details()}", file=sys.stderr)
        return 64 + error.code().value[0]
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
