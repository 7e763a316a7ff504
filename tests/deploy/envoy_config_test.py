"""deploy/front/envoy.yaml against Envoy's own API definitions: every field exists and has its type.
And against nginx.conf: no client names its tenant through either."""

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
assert [cluster.name for cluster in bootstrap.static_resources.clusters] == ["eta_servers"]
(chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
(host,) = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
dropped = re.findall(r'grpc_set_header (\S+) "";', (FRONT / "nginx.conf").read_text())
assert "x-eta-tenant" in dropped and sorted(dropped) == sorted(host["request_headers_to_remove"])
print(f"{CONFIG.name}: as Envoy's API has it")
