"""The metrics of several replicas as one text. Pure."""

from collections.abc import Mapping


def merged(figures: Mapping[str, str]) -> str:
    """Joins texts in the Prometheus format, by replica: each sample gets the label `replica`, and each family is there
    once with the samples of all."""
    families: dict[str, list[str]] = {}
    for replica, text in figures.items():
        header, samples = "", families.setdefault("", [])
        for line in text.splitlines():
            if line.startswith("# HELP"):
                header = line
            elif line.startswith("# TYPE"):
                samples = families.setdefault(f"{header}\n{line}\n", [])
            elif line and not line.startswith("#"):
                samples.append(_labelled(line, replica))
    return "".join(header + "".join(f"{each}\n" for each in samples) for header, samples in families.items())


def _labelled(sample: str, replica: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'
