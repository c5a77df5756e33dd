"""The servers of tools of one plan: started when they are first wanted, again after they failed, and ended with us."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from appliance.base.environ import snapshot
from appliance.base.log import fields, logger
from appliance.plan.serving_types import ToolServerPlan
from appliance.server.mcp.messages import ToolServerError, Transport
from appliance.server.mcp.session import ListedTool, ToolResult, begin, call_tool, list_tools
from appliance.server.mcp.stdio import StdioTransport

_log = logger("tools")
_FRESH_S: Final = 10.0  # a list of tools that is older is asked for again
_BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0)  # between starts that fail
_MAX_LIST_BYTES: Final = 4 * 2**20
_INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL", "TERM")


class ToolServer:
    """One server. Its connection is shared by all responses; what goes wrong in it fails the calls that are open."""

    def __init__(self, plan: ToolServerPlan) -> None:
        self.plan = plan
        self._transport: Transport | None = None
        self._tools: tuple[ListedTool, ...] = ()
        self._listed = 0.0
        self._connecting, self._listing = asyncio.Lock(), asyncio.Lock()
        self._num_failures = 0
        self._not_before = 0.0
        self._num_open = 0
        self._is_retired = False

    async def tools(self) -> tuple[ListedTool, ...]:
        """Those that may be used. Raises ToolServerError."""
        async with self._bounded("list"):
            transport = await self._connected()
            async with self._listing:
                if time.monotonic() - self._listed > _FRESH_S:
                    self._tools = await list_tools(transport)
                    self._listed = time.monotonic()
        allowed = self.plan.allowed_tools
        return tuple(tool for tool in self._tools if allowed is None or tool.name in allowed)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Raises ToolServerError."""
        async with self._bounded("call"):
            transport = await self._connected()
            return await call_tool(transport, name, arguments, self.plan.max_result_bytes)

    async def retire(self) -> None:
        """Ends the server once its open calls have ended."""
        self._is_retired = True
        if not self._num_open:
            await self.close()

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    @asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        """Holds one use within its time. A server that said nothing in all of it is ended, and started anew."""
        self._num_open += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.plan.timeout_s):
                yield
        except TimeoutError:
            if self._transport is not None and self._transport.last_heard < began:
                await self.close()
            raise ToolServerError(f"the {what} took more than {self.plan.timeout_s:g} s") from None
        finally:
            self._num_open -= 1
            if self._is_retired and not self._num_open:
                await self.close()

    async def _connected(self) -> Transport:
        async with self._connecting:
            if self._transport is not None and not self._transport.is_closed:
                return self._transport
            if (wait := self._not_before - time.monotonic()) > 0:
                raise ToolServerError(f"the server cannot be reached; it is tried again in {wait:.0f} s")
            await self.close()
            self._listed = 0.0
            try:
                transport = await self._opened()
            except BaseException:
                self._not_before = time.monotonic() + _BACKOFF_S[min(self._num_failures, len(_BACKOFF_S) - 1)]
                self._num_failures += 1
                raise
            self._num_failures = 0
            self._transport = transport
            return transport

    async def _opened(self) -> Transport:
        transport = await self._transport_of_plan()
        try:
            await begin(transport)
        except ToolServerError as error:
            await transport.close()
            transport = await self._of_older_transport(error)
        except BaseException:
            await transport.close()
            raise
        _log.info("a server of tools is there", extra=fields(server=self.plan.name))
        return transport

    async def _of_older_transport(self, error: ToolServerError) -> Transport:
        """Returns a session by the older transport with a server that does not take the newer one's first message.
        Raises `error` if it was another, or the server has no stream."""
        from appliance.server.mcp.sse import SseTransport  # noqa: PLC0415 - httpx, which most servers do without

        if not (error.is_http and 400 <= error.code < 500):
            raise error
        try:
            older = await SseTransport.opened(*self._address())
        except ToolServerError as own:
            raise (error if own.is_http else own) from own
        try:
            await begin(older)
        except BaseException:
            await older.close()
            raise
        return older

    async def _transport_of_plan(self) -> Transport:
        plan, ours = self.plan, snapshot()
        if plan.url is not None:
            return _reached(*self._address())
        fill = self._fill()
        try:
            kept = {name: ours[name] for name in _INHERITED if name in ours}
            environment = {**kept, **{name: fill(value) for name, value in plan.env.items()}}
            return await StdioTransport.start([fill(each) for each in plan.command], environment, self._max_bytes)
        except OSError as error:
            raise ToolServerError(f"the server cannot be started: {error}") from error

    @property
    def _max_bytes(self) -> int:
        return max(_MAX_LIST_BYTES, 2 * self.plan.max_result_bytes)

    def _address(self) -> tuple[str, dict[str, str], int]:
        """Returns the address, the headers, and how many bytes an answer may have."""
        fill = self._fill()
        assert self.plan.url is not None, "the server is reached by HTTP"
        return fill(self.plan.url), {name: fill(each) for name, each in self.plan.headers.items()}, self._max_bytes

    def _fill(self) -> Callable[[str], str]:
        """Returns what fills in ${env:NAME} and ${file:path}, and raises ToolServerError where it cannot."""
        from appliance.spec.document import InterpolationError  # noqa: PLC0415 - YAML, for those who have servers
        from appliance.spec.interpolate import interpolator  # noqa: PLC0415 - as above

        filled = interpolator(snapshot(), Path(self.plan.folder))

        def fill(text: str) -> str:
            try:
                return filled(text)
            except (OSError, InterpolationError) as error:
                raise ToolServerError(f"the server cannot be started: {error}") from error

        return fill


def _reached(url: str, headers: dict[str, str], max_bytes: int) -> Transport:
    """Raises ToolServerError for what can be no header."""
    from appliance.server.mcp.http import HttpTransport  # noqa: PLC0415 - httpx, which most servers do without

    try:
        return HttpTransport(url, headers, max_bytes)
    except ValueError as error:
        raise ToolServerError("a header has characters that no header may have") from error


class ToolServers:
    """All of them, by name. They outlive a plan where the next one has them as they are."""

    def __init__(self, plans: Iterable[ToolServerPlan] = ()) -> None:
        self._servers = {plan.name: ToolServer(plan) for plan in plans}
        self._retiring: set[asyncio.Task[None]] = set()

    def find(self, name: str) -> ToolServer | None:
        return self._servers.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._servers)

    def use(self, plans: Iterable[ToolServerPlan]) -> None:
        """Has the servers of another plan from now on; open calls of those that go end first."""
        before, self._servers = self._servers, {}
        for plan in plans:
            server = before.get(plan.name)
            self._servers[plan.name] = before.pop(plan.name) if server and server.plan == plan else ToolServer(plan)
        for server in before.values():
            task = asyncio.create_task(server.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Ends all of them."""
        await asyncio.gather(*(server.close() for server in self._servers.values()), *self._retiring)
