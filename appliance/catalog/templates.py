"""The chat templates of the package, for models whose own template does not support tools, or that have no template."""

from importlib.resources import files

SHIPPED = (
    "bge-reranker-v2-gemma",
    "chatml",
    "deepseek_v3",
    "granite",
    "granite_20b_fc",
    "hermes",
    "internlm",
    "jamba",
    "llama3_json",
    "mistral",
    "mistral_parallel",
    "mxbai-rerank-v2",
    "phi4_mini",
    "pythonic",
    "qwen3-reranker",
)
QWEN3_RERANKER = "qwen3-reranker"
OF_PAIRS = (
    "bge-reranker-v2-gemma",
    "mxbai-rerank-v2",
    "qwen3-reranker",
)  # these show a query and a document, and no conversation


def shipped_template(name: str) -> str:
    """Returns the text of one of SHIPPED."""
    assert name in SHIPPED
    return files("appliance").joinpath("text", "templates", f"{name}.jinja").read_text("utf-8")
