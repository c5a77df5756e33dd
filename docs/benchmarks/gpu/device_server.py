"""The part `streams`: a server under many streams, a third of which goes away."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
from device_case import SMALL, TINY, Case, Findings, Values, plan_of, random_model, some_prompts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from appliance.plan.hashes import with_hashes


def streams(case: Case) -> Findings:
    """Raises RuntimeError if a request that stays fails, or if anything is open or in use afterwards."""
    count, length = (8, 12) if case.dry else (64, 200)
    with random_model(TINY if case.dry else SMALL) as (folder, source):
        overrides = (f"hardware.kernels.kernel_set={case.kernel_set}", "loading.load_format=dummy")
        tracking = "endpoints.http.enable_server_load_tracking=true"
        _write_tokenizer(Path(source))
        sizes = ("model.max_model_len=512", "scheduler.max_num_seqs=64", "model.skip_tokenizer_init=false")
        plan = plan_of(folder, source, *overrides, tracking, *sizes)
        listen = msgspec.structs.replace(plan.serving.listen, port=0)
        plan = with_hashes(msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, listen=listen)))
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        command = [sys.executable, "-m", "appliance.server", "--plan", str(folder / "plan.json")]
        server = subprocess.Popen([*command, "--state", str(folder)], stdout=subprocess.DEVNULL)
        try:
            url = _url_of(folder / "status.jsonl", server)
            yield from asyncio.run(_under_load(url, count, length)).items()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)


def _write_tokenizer(folder: Path) -> None:
    """A token for each byte: what a server reads and writes, and nobody looks at."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def _url_of(status: Path, server: "subprocess.Popen[bytes]") -> str:
    """Waits until the server is ready. Raises RuntimeError if it ends before."""
    while server.poll() is None:
        events = [json.loads(line) for line in status.read_text().splitlines()] if status.exists() else []
        named = {event["event"]: event for event in events}
        if "ready" in named:
            return str(named["listening"]["url"])
        time.sleep(0.05)
    raise RuntimeError("the server ended before it was ready")


async def _under_load(url: str, count: int, length: int) -> Values:
    """Every third stream is left after a few chunks."""
    started = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=httpx.Limits(max_connections=count)) as http:
        chunks = await asyncio.gather(*(_stream(http, number, length) for number in range(count)))
        seconds = time.perf_counter() - started
        for _ in range(100):
            load = (await http.get("/load")).json()["server_load"]
            if load == 0:
                break
            await asyncio.sleep(0.05)
    stayed = [each for number, each in enumerate(chunks) if number % 3]
    if load or min(stayed) < length:
        raise RuntimeError(f"{load} requests are open; the shortest answer has {min(stayed)} of {length} tokens")
    return {"streams": count, "left": count - len(stayed), "tokens": sum(chunks), "wall_s": round(seconds, 3)}


async def _stream(http: httpx.AsyncClient, number: int, length: int) -> int:
    """Returns how many tokens came; of a stream that is left, how many chunks. Raises RuntimeError for an error."""
    prompt = some_prompts(1, 16 + number, 250)[0]
    body = {"model": "device", "prompt": prompt, "max_tokens": length, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0.0 if number % 2 else 0.8}  # fmt: skip
    found = 0
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if answer.status_code != 200:
                raise RuntimeError(line)
            if not line.startswith("data: {"):
                continue
            usage = json.loads(line.removeprefix("data: ")).get("usage")
            found = usage["completion_tokens"] if usage else found + 1
            if number % 3 == 0 and found == 4:
                break
    return found
