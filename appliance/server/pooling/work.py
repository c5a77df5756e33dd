"""The way of a request of the server to the engine, for models that pool."""

from collections.abc import Mapping, Sequence

from starlette.requests import Request

from appliance.requests.pooling.run import PoolingWork
from appliance.server.output.generation import collect, new_request_id
from appliance.server.state import ServerState
from appliance.service.requests import TextOutput, TextRequest


def work_of(state: ServerState, request: Request) -> PoolingWork:
    """Returns what inputs of a request are read and run with."""

    async def run(requests: Sequence[TextRequest]) -> Mapping[int, TextOutput]:
        return await collect(state, request, requests)

    return PoolingWork(
        plan=state.plan,
        tokenizer=state.tokenizer,
        prompts=state.prompts,
        sampling=state.sampling,
        collect=run,
        request_id=lambda given: new_request_id(request, state.plan.serving.http, given),
    )
