"""deploy/front/envoy.yaml against Envoy's own API definitions: every field exists and has its type."""

import importlib
import pathlib

import envoy
import yaml
from envoy.config.bootstrap.v3 import bootstrap_pb2
from google.protobuf import json_format

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "deploy/front/envoy.yaml"

# What @type names must be known before it is read.
for folder in envoy.__path__:
    for file in pathlib.Path(folder).rglob("*_pb2.py"):
        importlib.import_module(
            ".".join(file.relative_to(pathlib.Path(folder).parent).with_suffix("").parts))

bootstrap = json_format.ParseDict(yaml.safe_load(CONFIG.read_text()), bootstrap_pb2.Bootstrap())
assert [cluster.name for cluster in bootstrap.static_resources.clusters] == ["eta_servers"]
print(f"{CONFIG.name}: as Envoy's API has it")
