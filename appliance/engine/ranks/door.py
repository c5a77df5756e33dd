"""Where ranks of other machines join: the leader lets in those that know the token and have the same weights."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from socket import SO_KEEPALIVE, SO_RCVTIMEO, SOL_SOCKET

from appliance import __version__
from appliance.base.log import fields, logger
from appliance.engine.ranks.handles import RankStartError, limit_sends
from appliance.engine.ranks.join_messages import GREETING, Join, Joined, Refused
from appliance.engine.ranks.messages import ENCODE, Load
from appliance.engine.ranks.proof import ProofError, check_rank

_GREETING_S = 10.0  # in which a message of a greeting comes
_CHECK_S = 600.0  # in which a rank compares its weights
_MOST_GREETINGS = 32  # at a time
_log = logger("engine")


class Door:
    """Listens from the beginning on. Each rank that joins is handed to who waits for it, once."""

    def __init__(
        self, address: tuple[str, int], token: str, ranks: range, welcome: Callable[[int], Load | Refused]
    ) -> None:
        """ranks: those beside the leader. welcome: what one is told, which has shown the token. Raises OSError if the
        address cannot be had."""
        self._token, self._ranks, self._welcome = token, ranks, welcome
        self._listener = socket.create_server(address, backlog=_MOST_GREETINGS)
        self._guests: dict[int, socket.socket] = {}
        self._wanted: set[int] = set()
        self._came = threading.Condition()
        self._room = threading.Semaphore(_MOST_GREETINGS)
        self.last_refusal = ""
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def want(self, rank: int) -> None:
        """Lets a rank in from now on."""
        with self._came:
            self._wanted.add(rank)

    def wait(self, rank: int, timeout_s: float, is_over: threading.Event) -> socket.socket:
        """Waits for a rank that is wanted; returns the connection to it. Raises RankStartError if it does not come."""
        deadline = time.monotonic() + timeout_s
        with self._came:
            while rank not in self._guests:
                left = deadline - time.monotonic()
                if left <= 0 or is_over.is_set():
                    self._wanted.discard(rank)
                    refused = f"; the last that tried was refused: {self.last_refusal}" if self.last_refusal else ""
                    raise RankStartError(f"rank {rank} did not join within {timeout_s:g} s{refused}")
                self._came.wait(min(left, 0.2))
            return self._guests.pop(rank)

    def close(self) -> None:
        self._listener.close()
        with self._came:
            for guest in self._guests.values():
                guest.close()
            self._guests.clear()

    def _accept(self) -> None:
        while True:
            try:
                guest, (host, *_) = self._listener.accept()
            except OSError:  # it was closed
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(guest, host), name=f"greet {host}", daemon=True).start()
            else:
                guest.close()

    def _greet(self, guest: socket.socket, host: str) -> None:
        """Lets a rank in, or says why not."""
        try:
            with Connection(guest.dup().detach()) as connection:
                self._let_in(guest, connection)
        except (ProofError, OSError, EOFError, ValueError) as error:
            self._refuse(host, str(error) or "it left")
            guest.close()
        finally:
            self._room.release()

    def _let_in(self, guest: socket.socket, connection: Connection) -> None:
        """Raises ProofError, OSError, EOFError, and ValueError for a message that is none or a reason of its own."""
        limit_receipts(guest, _GREETING_S)
        limit_sends(guest, _GREETING_S)
        check_rank(connection, self._token)
        join = GREETING.decode(connection.recv_bytes())
        if not isinstance(join, Join):
            raise ValueError("it did not say which rank it is")
        answer = self._answer(join)
        connection.send_bytes(ENCODE(answer))
        if isinstance(answer, Refused):
            raise ValueError(f"rank {join.rank} of {join.machine}: {answer.reason}")
        limit_receipts(guest, _CHECK_S)
        reply = GREETING.decode(connection.recv_bytes())
        if not isinstance(reply, Joined):
            reason = reply.reason if isinstance(reply, Refused) else "it did not say that it joins"
            raise ValueError(f"rank {join.rank} of {join.machine}: {reason}")
        limit_receipts(guest, 0.0)
        with self._came:
            if join.rank not in self._wanted:
                raise ValueError(f"rank {join.rank} of {join.machine}: another one has joined meanwhile")
            self._wanted.remove(join.rank)
            self._guests[join.rank] = guest
            self._came.notify_all()
        _log.info("a rank joined", extra=fields(rank=join.rank, machine=join.machine))

    def _answer(self, join: Join) -> Load | Refused:
        if join.version != __version__:
            return Refused(f"it is appliance {join.version}, and the leader {__version__}", "install the same version")
        if join.rank not in self._ranks:
            hint = f"the group has ranks 0 to {self._ranks.stop - 1}"
            return Refused(f"there is no rank {join.rank} beside the leader", hint)
        with self._came:
            if join.rank not in self._wanted:
                ranks = ", ".join(map(str, sorted(self._wanted))) or "none"
                hint = f"ranks that are waited for: {ranks}"
                return Refused(f"rank {join.rank} is not waited for", hint, is_for_now=True)
        welcome = self._welcome(join.rank)
        if isinstance(welcome, Load) and join.engine_sha256 not in ("", welcome.plan.engine_sha256):
            return Refused("it is for another plan", "plan again: appliance plan")
        return welcome

    def _refuse(self, host: str, reason: str) -> None:
        self.last_refusal = f"{host}: {reason}"
        _log.warning("a rank was refused", extra=fields(host=host, reason=reason))


class JoinedRank:
    """A rank of another machine, which is there once it has joined. The other machine starts it again, or does not."""

    def __init__(self, door: Door, rank: int, join_timeout_s: float, timeout_s: float) -> None:
        self._door, self._rank, self._join_timeout_s, self._timeout_s = door, rank, join_timeout_s, timeout_s
        self._is_over, self._gone = threading.Event(), threading.Event()
        self._socket: socket.socket | None = None
        self.phase = f"waits for `appliance ranks join {':'.join(map(str, door.address))} --rank {rank}`"
        door.want(rank)

    def connect(self, first: Load) -> Connection:
        """Waits until it has joined, which has told it what to load."""
        self._socket = guest = self._door.wait(self._rank, self._join_timeout_s, self._is_over)
        watch_peer(guest, self._timeout_s)
        limit_sends(guest, self._timeout_s)
        return Connection(guest.dup().detach())

    def wait(self, timeout_s: float | None = None) -> str | None:
        """Without a time, it is asked at the end of the connection."""
        if timeout_s is None:
            self._gone.set()
        return "its connection ended" if self._gone.wait(timeout_s) else None

    def kill(self) -> None:
        """Ends the connection, at which the rank ends itself."""
        self._is_over.set()
        guest, self._socket = self._socket, None
        if guest is not None:
            try:
                guest.shutdown(socket.SHUT_RDWR)
            except OSError:
                _log.debug("the connection to a rank had ended")
            guest.close()


def limit_receipts(end: socket.socket, timeout_s: float) -> None:
    """Has a message that does not come fail after a time, with OSError; 0 waits for ever."""
    end.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("ll", int(timeout_s), 0))


def watch_peer(end: socket.socket, timeout_s: float) -> None:
    """Has the system end a connection whose other machine does not answer for a time."""
    seconds = max(1, int(timeout_s / 4))
    end.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    options = (socket.TCP_KEEPIDLE, seconds), (socket.TCP_KEEPINTVL, seconds), (socket.TCP_KEEPCNT, 3)
    for option, value in (
        *options,
        (socket.TCP_USER_TIMEOUT, max(1000, int(1000 * timeout_s))),
        (socket.TCP_NODELAY, 1),
    ):
        end.setsockopt(socket.IPPROTO_TCP, option, value)
