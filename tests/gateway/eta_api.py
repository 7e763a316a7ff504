"""eta.v1 of a server, by the messages of proto/: what a gateway's answers are compared with."""

import base64
import pathlib
import subprocess
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 60


def data(text):
    """A field of bytes, in JSON."""
    return base64.b64encode(text.encode()).decode()


def pool_of(proto):
    """The messages of a file of proto/, and of those that it imports."""
    with tempfile.NamedTemporaryFile() as compiled:
        subprocess.run(["protoc", "-I", ROOT / "proto", "--include_imports", f"--descriptor_set_out={compiled.name}",
                        proto], check=True)  # fmt: skip
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def messages():
    """A function that gives the class of a message of eta.v1, by its name."""
    pool = pool_of("eta/v1/service.proto")
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"eta.v1.{name}"))


class Answer:
    """An answer of Generate: text, ids, logprobs, and the messages Started and Finished."""

    def __init__(self, events):
        self.text, self.ids, self.logprobs = "", [], []
        for event in events:
            if event.HasField("started"):
                self.started = event.started
            elif event.HasField("delta"):
                self.text += event.delta.text
                self.ids += event.delta.token_ids
                self.logprobs += event.delta.logprobs
            elif event.HasField("finished"):
                self.finished = event.finished


class EtaApi:
    def __init__(self, address, classes):
        self.channel = grpc.insecure_channel(address)
        self.classes = classes

    def call(self, kind, method, asked, answered, fields):
        request = json_format.ParseDict(fields, self.classes(asked)())
        stub = getattr(self.channel, kind)(
            f"/eta.v1.EtaService/{method}",
            request_serializer=self.classes(asked).SerializeToString,
            response_deserializer=self.classes(answered).FromString)  # fmt: skip
        return stub(request, timeout=SECONDS)

    def generate(self, **fields):
        """`fields`: GenerateRequest as JSON."""
        return Answer(self.call("unary_stream", "Generate", "GenerateRequest", "GenerateResponse", fields))

    def tokenize(self, **fields):
        return list(self.call("unary_unary", "Tokenize", "TokenizeRequest", "TokenizeResponse", fields).token_ids)

    def running(self):
        load = self.call("unary_unary", "Stats", "StatsRequest", "Stats", {}).load
        return load.running + load.waiting
