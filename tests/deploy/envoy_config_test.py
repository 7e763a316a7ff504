"""deploy/front/envoy.yaml against Envoy's own API definitions: every field exists and has its type.
One connection does not fill the heap. And against nginx.conf: no client names its tenant through
either."""

import importlib
import pathlib
import re

import envoy
import yaml
from envoy.config.bootstrap.v3 import bootstrap_pb2
from google.protobuf import json_format

FRONT = pathlib.Path(__file__).resolve().parents[2] / "deploy/front"
CONFIG = FRONT / "envoy.yaml"

# What @type names must be known before it is read.
for folder in envoy.__path__:
    for file in pathlib.Path(folder).rglob("*_pb2.py"):
        importlib.import_module(
            ".".join(file.relative_to(pathlib.Path(folder).parent).with_suffix("").parts))

config = yaml.safe_load(CONFIG.read_text())
bootstrap = json_format.ParseDict(config, bootstrap_pb2.Bootstrap())
assert {cluster.name for cluster in bootstrap.static_resources.clusters} == {"admin", "eta_servers"}
managers = {listener["name"]: listener["filter_chains"][0]["filters"][0]["typed_config"]
            for listener in config["static_resources"]["listeners"]}
# Who administers it is on this host. Scrapers get one page.
assert bootstrap.admin.address.socket_address.address == "127.0.0.1"
(page,) = managers["metrics"]["route_config"]["virtual_hosts"][0]["routes"]
assert page == {"match": {"path": "/stats/prometheus"}, "route": {"cluster": "admin"}}, page
manager = managers["clients"]
FLAGS = manager["access_log"][0]["filter"]["response_flag_filter"]["flags"]
assert "RL" in FLAGS and "DC" not in FLAGS, "it says what it refuses, and not who left"
(host,) = manager["route_config"]["virtual_hosts"]
dropped = re.findall(r'grpc_set_header (\S+) "";', (FRONT / "nginx.conf").read_text())
assert "x-eta-tenant" in dropped and sorted(dropped) == sorted(host["request_headers_to_remove"])

BUFFER = "envoy.filters.http.buffer"
largest = max(route["typed_per_filter_config"][BUFFER]["buffer"]["max_request_bytes"]
              for route in host["routes"] if "typed_per_filter_config" in route)
overload = config["overload_manager"]
heap = max(monitor["typed_config"].get("max_heap_size_bytes", 0)
           for monitor in overload["resource_monitors"])
streams = manager["http2_protocol_options"]["max_concurrent_streams"]
assert streams * largest < 0.55 * heap, (streams, largest, heap)
# Without this the action that ends the largest streams does nothing.
assert 2 ** overload["buffer_factory_config"]["minimum_account_to_track_power_of_two"] <= 2**20
print(f"{CONFIG.name}: as Envoy's API has it")
