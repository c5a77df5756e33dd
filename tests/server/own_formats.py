"""Output formats as an operator would write them, with the faults that they may have."""

import time

from appliance.text.parsing.reader import Reader, Reading
from appliance.text.reasoning.format import ReasoningFormat
from appliance.text.reasoning.framed import framed
from appliance.text.reasoning.writer import ReasoningWriter

THOUGHTS = ReasoningFormat(
    name="thoughts", script=framed(("[thought]",), ("[/thought]",)), start="[thought]", end="[/thought]"
)
NO_FORMAT = 3


def faulty(reader: Reader, writer: ReasoningWriter, is_open: bool) -> Reading[None]:
    """Hangs at an `h`, raises at an `r`, and says everything else."""
    while char := (yield from reader.peek()):
        while char == "h":
            time.sleep(0.01)
        if char == "r":
            raise LookupError("a secret of the machine")
        reader.take()
        writer.content(char)


FAULTY = ReasoningFormat(name="faulty", script=faulty, start="", end="")
