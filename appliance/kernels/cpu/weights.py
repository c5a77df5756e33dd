"""The weights of a bound program in native memory: packed here, or adopted from a file that an earlier start kept."""

import contextlib
import ctypes
import time
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from appliance.base.free_memory import free_bytes
from appliance.base.log import fields, logger
from appliance.base.units import format_size
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.packed_file import PackedBytes, PackedFile, PackedFileError, form_fields
from appliance.kernels.cpu.packed_keeper import PackedKeeper
from appliance.kernels.cpu.packing import Packer, as_floats, matrix_of
from appliance.kernels.cpu.sleeping import AwayWeights, KeptWeights, Move, give_back, move_all, pieces
from appliance.kernels.cpu.staged_weights import PackedBeside, check_form, copy_matrix
from appliance.kernels.errors import BindError, ExecutableError
from appliance.kernels.layout import CanonicalWeight
from appliance.kernels.packed_cache import PackedCache
from appliance.kernels.reports import WeightsReport
from appliance.program.operators import StepProgram
from appliance.program.work import WeightSize

_log = logger("kernels")


class BoundWeights:
    """The bound weights: matrices (of Linear and Embed) are packed; vectors and tables are f32 arrays."""

    def __init__(
        self, library: Library, pool: ctypes.c_void_p, resources: contextlib.ExitStack, matrices: frozenset[str]
    ) -> None:
        self._library = library
        self._pool = pool
        self._resources = resources
        self._matrix_names = matrices
        self._matrices: dict[str, ctypes.c_void_p] = {}
        self._lent: dict[str, ctypes.c_void_p] = {}
        self._lender: BoundWeights | None = None
        self._vectors: dict[str, np.ndarray] = {}
        self._file: PackedFile | None = None  # keeps the mapping of adopted weights
        self._replaced: set[str] = set()  # that are not as the file holds them: pages of these are this process's own
        self._keeper: PackedKeeper | None = None  # writes the weights as they were packed
        self._kept: KeptWeights | None = None  # where they are kept, if they are
        self._put_away: AwayWeights | None = None

    def borrow(self, lender: "BoundWeights", names: Mapping[str, str]) -> None:
        """Takes matrices of another program, by names that they have here and there; they are not loaded. They have to
        live until the last step of this program."""
        self._lent = {name: lender._handle(theirs) for name, theirs in names.items()}
        self._lender = lender
        self._matrix_names = self._matrix_names.difference(names)

    def load(
        self,
        weights: Mapping[str, CanonicalWeight],
        program: StepProgram,
        num_threads: int,
        cache: PackedCache | None,
    ) -> None:
        """Loads from the cache if it holds them, else from `weights` and then fills the cache. Raises BindError."""
        wanted = self._matrix_names | program.vectors()
        missing = sorted(wanted.difference(weights))  # only its names: a lookup would translate the weight
        if missing:
            raise BindError(f"the program names weights that are not there: {', '.join(missing)}")
        if cache is None:
            self._pack(weights, wanted, num_threads)
            return
        started = time.monotonic()
        functions = self._library.functions
        key = cache.key(functions.appl_level().decode(), int(functions.appl_packed_version()))
        self._kept = KeptWeights(cache, key)
        reason = self._adopt(cache, key, wanted, num_threads)
        if reason is not None:
            self._pack(weights, wanted, num_threads)
            self._keep(cache, key)
        seconds = time.monotonic() - started
        cache.report = WeightsReport(
            origin="checkpoint" if reason else "cache",
            seconds=seconds,
            size_bytes=self.size_bytes,
            file=str(cache.path(key)),
            reason=reason or "",
        )
        what = "weights are packed" if reason else "packed weights are adopted"
        _log.info(what, extra=fields(seconds=round(seconds, 3), bytes=self.size_bytes, file=cache.path(key).name))

    def matrix(self, name: str) -> int:
        return self._handle(name).value or 0

    def size_of(self, name: str) -> WeightSize:
        """Returns the bytes and the layout of a packed matrix."""
        form, functions = abi.PackedForm(), self._library.functions
        functions.appl_weight_form(self._handle(name), ctypes.byref(form))
        return WeightSize(int(functions.appl_weight_bytes(self._handle(name))), abi.LAYOUT_NAMES[form.layout])

    def vector(self, name: str, size: int) -> int:
        vector = self._vectors[name]
        if vector.size != size:
            raise BindError(f"weight {name!r} has {vector.size} elements, the program needs {size}")
        return int(vector.ctypes.data)

    def table(self, name: str, columns: int) -> np.ndarray:
        table = self._vectors[name]
        if table.shape[1] != columns:
            raise BindError(f"table {name!r} has {table.shape[1]} columns, the program needs {columns}")
        return table

    def rows(self, name: str, rows: int) -> np.ndarray:
        table = self._vectors[name]
        if table.shape[0] != rows:
            raise BindError(f"table {name!r} has {table.shape[0]} rows, the program needs {rows}")
        return table

    def write_rows(self, name: str, start: int, rows: CanonicalWeight) -> None:
        """Replaces rows of a packed matrix, or numbers of a vector. Raises BindError for rows of another form."""
        self._replaced.add(name)
        if name in self._vectors:
            values = as_floats(name, rows).ravel()
            self._vectors[name].reshape(-1)[start : start + values.size] = values
            return
        matrix = matrix_of(name, rows)
        status = self._library.functions.appl_weight_fill(self._matrices[name], start, ctypes.byref(matrix))
        self._library.check(status, f"weight {name!r}")

    @property
    def size_bytes(self) -> int:
        """The bytes of the program's own weights."""
        size_of = self._library.functions.appl_weight_bytes
        return sum(int(size_of(m)) for m in self._matrices.values()) + sum(v.nbytes for v in self._vectors.values())

    def stage(self, weights: Mapping[str, CanonicalWeight], num_threads: int) -> PackedBeside:
        """Packs new weights beside those of their names. Raises BindError if one has another form, ExecutableError
        without the memory."""
        own = [name for name in weights if name in self._matrices or name in self._vectors]
        # A page of the kept file that is written becomes one more page of memory.
        copied = [name for name in own if self._file is not None and name not in self._replaced]
        needed = sum(map(self._size, (*own, *copied)))
        if needed > (free := free_bytes()):
            told = f"new weights take {format_size(needed)} beside the old ones"
            raise ExecutableError(f"{told}, and {format_size(free)} of memory can be had")
        packed = PackedBeside(self._library, self._matrix_names)
        try:
            packed.pack(weights, own, num_threads)
            for name, handle in packed.matrices.items():
                check_form(self._library, name, self._matrices[name], handle)
            for name, vector in packed.vectors.items():
                if vector.shape != self._vectors[name].shape:
                    raise BindError(f"weight {name!r} is {vector.shape}, and {self._vectors[name].shape} is served")
        except BaseException:
            packed.close()
            raise
        return packed

    def put(self, packed: PackedBeside) -> None:
        """Copies new weights over those of their names, whose addresses stay. No step runs meanwhile."""
        if self._keeper is not None:
            self._keeper.cancel()  # or it would keep these as the weights of the checkpoint before
            self._keeper = None
        if self._file is not None:
            self._file.make_private()
        self._replaced.update(packed.matrices, packed.vectors)
        for name, handle in packed.matrices.items():
            copy_matrix(self._library, name, self._matrices[name], handle)
        for name, vector in packed.vectors.items():
            ctypes.memmove(self._vectors[name].ctypes.data, vector.ctypes.data, vector.nbytes)

    def give_back(self, *, keep: bool) -> None:
        """Gives the memory of weights back, whose addresses stay. What the kept file holds comes from there again; of
        the others those go that are not to be kept. No step runs until they were taken back."""
        if self._keeper is not None:
            self._keeper.join()  # it reads them, and they may come back from what it writes
        own = self._packed()
        file = self._file
        if file is None and self._kept is not None:
            file = self._kept.open(own, self._library, self._pool)
        held = [each for each in own if file is not None and each.name not in self._replaced]
        lost = [] if keep else [each for each in own if file is None or each.name in self._replaced]
        self._put_away = AwayWeights(tuple(held), tuple(lost), file, is_mapped=self._file is not None)
        give_back((*held, *lost))

    def take_back(self, weights: Mapping[str, CanonicalWeight] | None, num_threads: int) -> None:
        """Brings weights back to where they were. weights: as they were loaded, for those that were not kept. Raises
        ExecutableError without the memory, BindError for a weight of another form; then it can be tried again."""
        away = self._put_away
        if away is None:
            return
        away.check_room()
        if away.is_mapped and away.file is not None:
            away.file.populate()
        move_all(away.moves(), num_threads)
        if away.lost:
            assert weights is not None, "weights that were not kept are read again"
            self._fill({each.name for each in away.lost}, weights, num_threads)
        if away.file is not None and not away.is_mapped:
            away.file.close()
        self._put_away = None

    def _fill(self, names: Collection[str], weights: Mapping[str, CanonicalWeight], num_threads: int) -> None:
        """Packs weights into the memory that they have."""
        packer = Packer(self._library, self._pool, self._matrix_names, self._matrices)
        packer.pack(weights, [name for name in weights if name in names], num_threads)
        for name, vector in packer.vectors.items():
            if vector.shape != self._vectors[name].shape:
                raise BindError(f"weight {name!r} is {vector.shape} now, and was {self._vectors[name].shape}")
            ctypes.memmove(self._vectors[name].ctypes.data, vector.ctypes.data, vector.nbytes)

    def _size(self, name: str) -> int:
        if name in self._vectors:
            return self._vectors[name].nbytes
        return int(self._library.functions.appl_weight_bytes(self._matrices[name]))

    def _pack(self, weights: Mapping[str, CanonicalWeight], wanted: frozenset[str], num_threads: int) -> None:
        packer = Packer(self._library, self._pool, self._matrix_names)
        try:
            packer.pack(weights, [name for name in weights if name in wanted], num_threads)
        finally:
            for handle in packer.created:
                self._own(handle)
        self._matrices, self._vectors = packer.matrices, packer.vectors

    def _adopt(self, cache: PackedCache, key: str, wanted: frozenset[str], num_threads: int) -> str | None:
        """Adopts the weights of a cached file. Returns None, or the reason if that is not possible."""
        path = cache.path(key)
        if not path.is_file():
            return "nothing is kept"
        try:
            file = PackedFile(path, key, self._library, self._pool)
            if file.entries.keys() != wanted:
                raise PackedFileError("it holds other weights")
            matrices = self._adopted(file)
        except (PackedFileError, BindError, OSError, msgspec.DecodeError) as error:
            reason = f"the kept file is not used: {error}"
            _log.warning("a file of packed weights is made anew", extra=fields(file=path.name, reason=str(error)))
            with contextlib.suppress(OSError):
                path.unlink()
            return reason
        self._vectors = {name: file.floats(entry) for name, entry in file.entries.items() if entry.form is None}
        self._matrices, self._file = matrices, file
        if cache.copies:
            self._copy(file, num_threads)
        cache.touch(path)
        return None

    def _adopted(self, file: PackedFile) -> dict[str, ctypes.c_void_p]:
        matrices: dict[str, ctypes.c_void_p] = {}
        for name, entry in file.entries.items():
            if entry.form is None:
                continue
            form, handle = abi.PackedForm(*entry.form), ctypes.c_void_p()
            if form.bytes != entry.size or name not in self._matrix_names:
                raise PackedFileError(f"{name} has another form than its bytes")
            status = self._library.functions.appl_weight_adopt(
                ctypes.byref(form), file.address(entry), ctypes.byref(handle)
            )
            self._library.check(status, f"weight {name!r}")
            self._own(handle)
            matrices[name] = handle
        return matrices

    def _copy(self, file: PackedFile, num_threads: int) -> None:
        """Copies the weights from the mapping into the pool's memory, and closes the mapping."""
        functions = self._library.functions
        moves: list[Move] = []
        for name, mapped in self._matrices.items():
            form, handle = abi.PackedForm(), ctypes.c_void_p()
            functions.appl_weight_form(mapped, ctypes.byref(form))
            status = functions.appl_weight_reserve(self._pool, ctypes.byref(form), ctypes.byref(handle))
            self._library.check(status, f"weight {name!r}")
            self._own(handle)
            self._matrices[name] = handle
            to, at = functions.appl_weight_panels(handle), functions.appl_weight_panels(mapped)
            moves += pieces(to, at, int(form.bytes))
        move_all(moves, num_threads)
        self._vectors = {name: vector.copy() for name, vector in self._vectors.items()}
        self._file = None
        file.close()

    def _keep(self, cache: PackedCache, key: str) -> None:
        """Writes the weights to the cache in the background; the writing ends before the weights are freed."""
        if self.size_bytes < cache.min_bytes:
            return
        keeper = PackedKeeper(cache, key, self._packed(), self._library)
        try:
            keeper.start()
        except RuntimeError as error:  # the system refuses a new thread
            _log.info("packed weights are not kept", extra=fields(reason=str(error)))
            return
        self._keeper = keeper
        self._resources.callback(keeper.cancel)

    def _packed(self) -> list[PackedBytes]:
        found = []
        functions = self._library.functions
        for name, handle in self._matrices.items():
            form = abi.PackedForm()
            functions.appl_weight_form(handle, ctypes.byref(form))
            address = int(functions.appl_weight_panels(handle))
            found.append(PackedBytes(name, address, int(form.bytes), form=form_fields(form)))
        for name, vector in self._vectors.items():
            found.append(PackedBytes(name, int(vector.ctypes.data), vector.nbytes, shape=vector.shape))
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the address and the bytes of each of the program's own weights."""
        return [(each.address, each.size) for each in self._packed()]

    def _handle(self, name: str) -> ctypes.c_void_p:
        return self._matrices[name] if name in self._matrices else self._lent[name]

    def _own(self, handle: ctypes.c_void_p) -> None:
        self._resources.callback(self._library.functions.appl_weight_destroy, handle)
