"""Spans of the built server, as a collector reads them that was made elsewhere: by the messages that
OpenTelemetry publishes, and by the names of its conventions.

  otlp.py BUILD_DIR
"""

import importlib
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import FieldDescriptor
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONVENTIONS = "opentelemetry.semconv._incubating.attributes"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def known_names():
    """Every attribute that the conventions name."""
    names = set()
    for group in ("error", "gen_ai", "rpc", "service"):
        module = importlib.import_module(f"{CONVENTIONS}.{group}_attributes")
        names |= {value for value in vars(module).values() if isinstance(value, str) and "." in value}
    # Of conventions for resources that are no longer in the making.
    return names | {"service.name", "service.version"}


def check_known(message):
    """Nothing in a message, however deep, has a number or a type that it should not have."""
    strangers = list(unknown_fields.UnknownFieldSet(message))
    assert not strangers, f"{message.DESCRIPTOR.full_name}: unknown fields {strangers}"
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        for part in value if field.is_repeated else [value]:
            check_known(part)


def attributes(owner):
    return {item.key: item.value for item in owner.attributes}


def check(spans, names):
    """One call of `text_completion` and its children."""
    for span in spans:
        assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
        strangers = {key for key in attributes(span) if not key.startswith("eta.")} - names
        assert not strangers, f"no convention names {strangers}"
    call, children = spans[0], spans[1:]
    assert [span.name for span in spans] == ["text_completion eta-27m", "queue", "prefill", "decode"], spans
    assert call.kind == trace_pb2.Span.SPAN_KIND_SERVER, call
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, CALLER), call
    assert call.flags == 1 | trace_pb2.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | \
        trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK, call
    said = attributes(call)
    assert said["gen_ai.usage.output_tokens"].int_value == 8, said
    assert 0 < said["eta.union_density"].double_value <= 1, said
    for child in children:
        assert child.parent_span_id == call.span_id and child.trace_id == call.trace_id, child
        assert child.kind == trace_pb2.Span.SPAN_KIND_INTERNAL, child


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.batches = queue.Queue()

    def Export(self, request, context):
        self.batches.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def main():
    build = pathlib.Path(sys.argv[1])
    collector = Collector()
    listener = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    listener.start()
    command = [build / "bin/eta-server", "--model", ROOT / "models/eta-27m", "--listen=127.0.0.1:0",
               f"--otlp_endpoint=http://127.0.0.1:{port}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = next(line for line in server.stdout if line.startswith("listening on ")).split()[-1]
            generate(address)
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0, server.returncode
    listener.stop(None)
    names, spans = known_names(), []
    while not collector.batches.empty():
        batch = collector.batches.get()
        check_known(batch)
        for resource in batch.resource_spans:
            assert attributes(resource.resource).keys() <= names, resource.resource
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    check(spans, names)
    print(f"{len(spans)} spans, as the published messages and conventions have them")


def request_class():
    """GenerateRequest, as our own proto has it."""
    with tempfile.NamedTemporaryFile() as compiled:
        subprocess.run(["protoc", "-I", ROOT / "proto", "--include_imports", f"--descriptor_set_out={compiled.name}",
                        "eta/v1/generate.proto"], check=True)  # fmt: skip
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("eta.v1.GenerateRequest"))


def generate(address):
    """A call within a trace."""
    request = request_class()(text=b"The tower was built in")
    request.stopping.max_tokens = 8
    request.stopping.ignore_eos = True
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream("/eta.v1.EtaService/Generate")
        for _ in call(request.SerializeToString(), timeout=60,
                      metadata=[("traceparent", f"00-{TRACE}-{CALLER}-01")]):  # fmt: skip
            pass


if __name__ == "__main__":
    main()
