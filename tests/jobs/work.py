"""Batch files and answerers for tests. As a program: runs a batch slowly, to be killed."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from appliance.jobs.answerer import Answerer, LineReply
from appliance.jobs.progress import BatchProgress
from appliance.jobs.runner import BatchFiles, BatchOptions, run_batch


def request(custom_id: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def write_input(folder: Path, lines: list[str]) -> BatchFiles:
    files = BatchFiles(input=folder / "in.jsonl", output=folder / "out.jsonl", errors=folder / "err.jsonl")
    files.input.write_text("".join(f"{line}\n" for line in lines))
    return files


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(files: BatchFiles, answer: Answerer, **options: Any) -> BatchProgress:
    return asyncio.run(run_batch(files, BatchOptions(**options), answer, lambda progress: None))


def reply(body: bytes, status: int = 200) -> LineReply:
    """Says the request back, with a usage."""
    answer = {"echo": json.loads(body), "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    return LineReply(status, "r", json.dumps(answer if status < 400 else {"error": {"message": "no"}}).encode())


async def echo(path: str, body: bytes) -> LineReply:
    await asyncio.sleep(0)
    return reply(body)


def main() -> None:
    """work.py FOLDER ORDER: announces each request on stdout and answers it after `delay` seconds."""
    folder, order = Path(sys.argv[1]), sys.argv[2]
    files = BatchFiles(input=folder / "in.jsonl", output=folder / "out.jsonl", errors=folder / "err.jsonl")

    async def slow(path: str, body: bytes) -> LineReply:
        print("asked", flush=True)
        await asyncio.sleep(json.loads(body)["delay"])
        return reply(body)

    run(files, slow, order=order, max_concurrency=3)


if __name__ == "__main__":
    main()
