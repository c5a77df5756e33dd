"""The native programs of an executable, and the screen of its head, which are made anew when the weights change."""

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.addresses import Addresses
from appliance.kernels.cpu.kv_memory import KvMemory
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.operator_structs import Operator
from appliance.kernels.cpu.pinning import bind_workers
from appliance.kernels.cpu.pools import create_pool
from appliance.kernels.cpu.records import encode
from appliance.kernels.cpu.screen import LogitScreen, create_screen
from appliance.kernels.cpu.state_memory import StateMemory
from appliance.kernels.execution import Placement
from appliance.program import operators as ops
from appliance.program.fusion import gates_of_linears, inputs_of_linears
from appliance.program.head import screened_head


@dataclass(frozen=True, slots=True)
class Places:
    """Where programs find what they read and write."""

    at: Addresses
    kv_cache: KvMemory
    states: StateMemory


class NativePrograms:
    """The program, and the one with places for adapters if there is one: they share a workspace. While they are closed
    they have no memory, and nothing may be run."""

    def __init__(
        self,
        library: Library,
        pool: ctypes.c_void_p,
        programs: Sequence[ops.StepProgram],
        places: Places,
        limits: abi.Limits,
        placement: Placement,
    ) -> None:
        """programs: the plain one first. They are not made before `create`."""
        self._library, self._pool, self._programs = library, pool, programs
        self._places, self._limits, self._placement = places, limits, placement
        self._resources = contextlib.ExitStack()
        self.plain = self.adapted = ctypes.c_void_p()
        self.screen: LogitScreen | None = None

    def create(self) -> None:
        """Makes the screen of the head as it is now, and the programs, in place of those before. Raises BindError."""
        self.close()
        library, program = self._library, self._programs[0]
        if self._placement.screen_logits and screened_head(program) is not None:
            # The memory of this pool ends with the screen.
            pool = create_pool(library, self._resources, self._placement.num_threads)
            bind_workers(library, pool, self._placement)  # which touch that memory first
            self.screen = create_screen(library, pool, self._resources, program, self._places.at.weights)
        handles = [self._created(each) for each in self._programs]
        self.plain, self.adapted = handles[0], handles[-1]
        library.functions.appl_program_share_workspace(self.plain, self.adapted)
        if not self._placement.share_prefixes:
            for each in (self.plain, self.adapted):
                library.disable_cascade(each)

    def close(self) -> None:
        """Gives the memory of the programs and of the screen back."""
        self.screen = None
        self.plain = self.adapted = ctypes.c_void_p()
        self._resources.close()

    @property
    def are_there(self) -> bool:
        return bool(self.plain)

    @property
    def workspace_bytes(self) -> int:
        return int(self._library.functions.appl_program_workspace_bytes(self.plain)) if self.are_there else 0

    @property
    def shared_keys(self) -> int:
        return int(self._library.functions.appl_program_shared_keys(self.plain)) if self.are_there else 0

    def time_operators(self, plain: np.ndarray | None, adapted: np.ndarray | None) -> None:
        """Adds the seconds of operators to the arrays, which have to live as long as that goes on; None ends it."""
        if not self.are_there:
            return
        timed = {self.adapted.value: adapted, self.plain.value: plain}  # one program where there are no adapters
        for program, seconds in timed.items():
            address = None if seconds is None else seconds.ctypes.data
            self._library.functions.appl_program_time_operators(program, address)

    def _created(self, program: ops.StepProgram) -> ctypes.c_void_p:
        at = self._places.at
        records = (Operator * len(program.operators))(*(encode(op, at) for op in program.operators))
        for position in gates_of_linears(program):
            records[position].arguments.gated.from_linear = True
        for position in inputs_of_linears(program):
            is_gated = isinstance(program.operators[position], ops.GatedActivation)
            arguments = records[position].arguments
            (arguments.gated if is_gated else arguments.norm).for_linear = True
        if self.screen is not None and (head := screened_head(program)) is not None:
            linear = records[head.position].arguments.linear
            linear.screen, linear.first_token = self.screen.handle, head.first_token
        handle = ctypes.c_void_p()
        functions, caches, states = self._library.functions, self._places.kv_cache.caches, self._places.states.states
        status = functions.appl_program_create(
            *(self._pool, records, len(records), caches, len(caches), states, len(states)),
            *(self._limits, ctypes.byref(handle)),
        )
        self._library.check(status, "the program cannot be bound")
        self._resources.callback(functions.appl_program_destroy, handle)
        return handle
