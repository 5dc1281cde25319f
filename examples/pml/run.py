"""Run the examples of Prompt Cache: figures 2, 6, 7 and 8, and figure 8 as a Python program.

    python examples/pml/run.py [MODEL]

MODEL is a folder with a model of Hugging Face transformers. Without one, the bundled model
serves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.modular import Length, ModularModel, Prompt, Schema, prompt_program, role

HERE = Path(__file__).parent
EXAMPLES = ("cities", "game", "learner", "travel")


@prompt_program
def overseas(city: Literal["tokyo", "paris", "cape-town"]) -> Iterator[str]:
    """A destination abroad."""
    yield "The customer leaves the country and has a passport.\n"
    match city:
        case "tokyo":
            yield "The destination is Tokyo, in spring."
        case "paris":
            yield "The destination is Paris, in autumn."
        case _:
            yield "The destination is Cape Town, in February."


@prompt_program(name="travel-program")
def travel(
    duration: Annotated[str, Length(8)],
    city: Literal["tokyo", "paris", "cape-town"],
    abroad: bool,
    frugal: bool = False,
) -> Iterator[str]:
    """What a travel agent has to know."""
    with role("system"):
        yield "You are a travel agent."
    yield f"The customer wants to travel for {duration}.\n"
    if frugal:
        yield "The customer has little money.\n"
    if abroad:
        yield from overseas(city)
    else:
        yield "The customer stays in the country and travels by train.\n"


def read(name: str) -> tuple[Schema, Prompt]:
    """A schema and a prompt of it, from this folder."""
    schema, prompt = (HERE / f"{name}.{kind}.xml" for kind in ("schema", "prompt"))
    return (
        Schema.from_pml(schema.read_text(encoding="utf-8"), source=schema.name),
        Prompt.from_pml(prompt.read_text(encoding="utf-8"), source=prompt.name),
    )


def examples() -> dict[str, tuple[Schema, Prompt]]:
    """Every example by its name."""
    prompt = travel.prompt(duration="a week", city="tokyo", abroad=True)
    program = prompt.with_text("Create a travel plan.", role="user")
    return {name: read(name) for name in EXAMPLES} | {travel.name: (travel.schema, program)}


def main() -> None:
    """Serve each prompt with nothing but its new text computed."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default_model_path()
    with ModularModel(path) as model:
        for name, (schema, prompt) in examples().items():
            assembly = schema.compile(model.tokenizer).assemble(prompt)
            answer = model.generate(assembly, strategy="prompt_cache", max_tokens=16)
            print(f"{name}: {answer.text!r}")


if __name__ == "__main__":
    main()
