"""The text side of one sequence: tokens in, shown text out, and the decision to stop at a stop string."""

from appliance.engine.messages import FinishReason, SequenceOutput
from appliance.service.requests import TextOutput, TextRequest
from appliance.service.text_side import TextSide
from appliance.text.detokenizer import make_detokenizer
from appliance.text.stop_strings import StopScan, StopStrings


class SequenceText:
    """One of the n sequences of a request."""

    def __init__(self, text: TextSide, request: TextRequest, stops: StopStrings | None) -> None:
        """stops: those of the request, compiled."""
        options = request.text
        self.finished = False
        self._detokenizer = make_detokenizer(
            text.tokenizer,
            request.known_token_ids,
            skip_special_tokens=options.skip_special_tokens,
            spaces_between_special_tokens=options.spaces_between_special_tokens,
            kept=options.kept_special_tokens,
        )
        self._scan = StopScan(stops, include=options.include_stop_str_in_output) if stops else None
        self._is_plain = options.detokenize and self._scan is None
        self._min_tokens = request.sampling.min_tokens
        self._num_tokens = 0
        self._eos_token_ids = text.eos_token_ids
        self._options = options

    def advance(self, output: SequenceOutput) -> TextOutput:
        """Tokens after a stop string are dropped; `finished` is then set though the engine goes on."""
        token_ids = output.token_ids
        if self._is_plain and len(token_ids) == 1 and output.finish_reason is None and output.logprobs is None:
            return self._plain(output, token_ids)
        shown = TextOutput(
            index=output.index,
            text="",
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            num_cached_tokens=output.num_cached_tokens,
            vector=output.vector,
            drafts=output.drafts,
        )
        if output.finish_reason is not None:
            self.finished = True
            shown.finish_reason = output.finish_reason.value
            shown.stop_reason = self._stop_token(output)
        if self._options.detokenize:
            self._add_text(shown, hidden_last=self._hides_last(output))
        return shown

    def _plain(self, output: SequenceOutput, token_ids: list[int]) -> TextOutput:
        """Makes the output of the common case: one token, and nothing to look for in it."""
        self._num_tokens += 1
        return TextOutput(
            index=output.index,
            text=self._detokenizer.push(token_ids[0]),
            token_ids=token_ids,
            prompt_logprobs=output.prompt_logprobs,
            num_cached_tokens=output.num_cached_tokens,
        )

    def _add_text(self, shown: TextOutput, *, hidden_last: bool) -> None:
        push, scan, pieces = self._detokenizer.push, self._scan, []
        last = len(shown.token_ids) - 1
        for place, token_id in enumerate(shown.token_ids):
            self._num_tokens += 1
            if hidden_last and place == last:
                break
            text = push(token_id)
            if scan is not None and text and self._num_tokens > self._min_tokens:
                text = scan.feed(text)
                if scan.matched is not None:
                    pieces.append(text)
                    self._stop_here(shown, scan.matched, place + 1)
                    break
            pieces.append(text)
        if self.finished and not (scan and scan.matched):
            pieces.append(self._rest(shown))
        shown.text = "".join(pieces)

    def _rest(self, shown: TextOutput) -> str:
        """Returns the text that was held back: an unfinished character, and a stop string's beginning."""
        text = self._detokenizer.finish()
        if self._scan is None:
            return text
        text = self._scan.feed(text)
        return text + self._scan.finish()

    def _stop_here(self, shown: TextOutput, matched: str, num_tokens: int) -> None:
        self.finished = True
        shown.token_ids = shown.token_ids[:num_tokens]
        shown.logprobs = shown.logprobs[:num_tokens] if shown.logprobs is not None else None
        shown.finish_reason = FinishReason.STOP.value
        shown.stop_reason = matched

    def _hides_last(self, output: SequenceOutput) -> bool:
        """The token that ends a sequence is not text, as in vLLM, even where a vocabulary does not mark it special."""
        if output.finish_reason is not FinishReason.STOP or self._options.include_stop_str_in_output:
            return False
        last = output.token_ids[-1] if output.token_ids else None  # of a complete constraint it is text
        return last is not None and (last == output.stop_token_id or last in self._eos_token_ids)

    def _stop_token(self, output: SequenceOutput) -> int | None:
        token_id = output.stop_token_id
        return None if token_id is None or token_id in self._eos_token_ids else token_id
