"""Lab: a question, the fabric and the workload to ask it with, and what should come out.

A lab is a file `lab.py` of about 30 lines that sets `LAB = Lab(...)`; the ones in labs/exercises are known by the
name of their folder.  Everything is in hardware units and checked when the file is loaded; whatever is wrong is a
LabError that names file, line, key and the nearest valid name.  Nothing here needs root.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import labs.workload as workloads
from controllers.registry import create_policy, find_policy
from labs.agents import collectives
from labs.measure import theory
from labs.workload import Workload, check_key
from topologies import spec as specs
from topologies.errors import LabError, nearest, unknown_name
from topologies.spec import FabricSpec
from topologies.units import LabClock

EXERCISES = Path(__file__).parent / "exercises"
LAB_FILE = "lab.py"
QUICK_ITERATIONS = 2
_LIMITS = {"seeds": (1, 1000), "iterations": (1, 100_000), "warmup": (0, 1000)}


@dataclass(frozen=True)
class Expectation:
    """What a lab should show: `key` of run.json's runs (e.g. "jct_ratio"), for one policy, within bounds."""

    policy: str
    key: str
    at_least: float | None = None
    at_most: float | None = None
    why: str = ""

    def holds(self, value: float) -> bool:
        """Whether a measured value is within the bounds."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Lab:
    """One exercise.

    module: chapter of the course that it belongs to.  policies: names of load-balancing policies, in the order of
    the runs; policy_params: parameters for some of them.  seeds: how many, each with other UDP source ports and so with
    other collisions.  iterations: measured ones, after `warmup` others.  path: the file it came from.
    """

    name: str
    module: int
    title: str
    question: str
    fabric: FabricSpec
    workload: Workload
    policies: tuple[str, ...] = ("ecmp",)
    policy_params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int = 1
    iterations: int = 5
    warmup: int = 1
    expectations: tuple[Expectation, ...] = ()
    path: Path | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise LabError(f"name={self.name!r} is not a name", "small letters, digits and underscores")
        for key, (low, high) in _LIMITS.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise LabError(f"{key}={value!r} is not possible", f"a whole number from {low} to {high:,}")
        policies: object = self.policies
        object.__setattr__(self, "policies", (policies,) if isinstance(policies, str) else tuple(self.policies))
        if not self.policies:
            raise LabError("policies is empty", "at least one, for example ecmp")
        self.workload.plan(self.fabric)  # raises when the fabric has not the hosts for it

    def replace(self, **values: Any) -> Lab:
        """A copy with some fields changed, and everything checked again."""
        return dataclasses.replace(self, **values)

    def with_overrides(self, settings: Iterable[str]) -> Lab:
        """A copy with `--set key=value` applied: keys of the fabric, of the workload, or POLICY.PARAMETER."""
        fabric, load = [], []
        params = {name: dict(values) for name, values in self.policy_params.items()}
        workload_keys = self.workload.keys()
        for setting in settings:
            key, equals, text = (part.strip() for part in setting.partition("="))
            if not (key and equals and text):
                raise LabError(f"--set {setting!r} is not a setting", "write key=value, for example buffer_kb=64")
            if "." in key:
                policy, _, parameter = key.rpartition(".")
                find_policy(policy)
                params.setdefault(policy, {})[parameter] = text
            elif key in workload_keys:
                load.append(setting)
            else:
                close = nearest(key, (*specs.KEYS, *workload_keys))
                if key not in specs.KEYS and close in workload_keys:
                    check_key(key, workload_keys, f"the fabric and of {type(self.workload).__name__}")
                fabric.append(setting)
        return self.replace(fabric=self.fabric.with_overrides(fabric), workload=self.workload.with_overrides(load),
                            policy_params=params)

    def quick(self) -> Lab:
        """The same lab with half the bytes and few iterations, for a first look."""
        return self.replace(workload=self.workload.quick(), seeds=1, iterations=min(self.iterations, QUICK_ITERATIONS),
                            warmup=min(self.warmup, 1))

    @property
    def ideal_us(self) -> float:
        """One iteration on an ideal fabric: compute phase and communication."""
        return self.workload.compute_us + self.workload.communication_us(self.fabric)

    def estimated_lab_s(self, clock: LabClock) -> float:
        """Lab seconds of all iterations of all runs, if every one took twice the ideal."""
        runs = len(self.policies) * self.seeds
        return runs * (self.iterations + self.warmup) * 2 * clock.lab_ns(self.ideal_us) / 1e9

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Every effective parameter, by section, as printed before a run."""
        return {
            "lab": {"name": self.name, "policies": ", ".join(self.policies), "seeds": self.seeds,
                    "iterations": self.iterations, "warmup": self.warmup},
            "fabric": {**self.fabric.to_dict(), "uplink_gbps": self.fabric.uplink_rate_gbps},
            "workload": self.workload.describe(self.fabric),
            **{f"policy {name}": dict(values) for name, values in self.policy_params.items() if values},
        }

    def check(self) -> list[str]:
        """What is odd but possible, one sentence each.  Raises LabError for what is not possible.  No root needed."""
        for policy in (*self.policies, *self.policy_params, *(e.policy for e in self.expectations)):
            create_policy(policy, self.policy_params.get(policy))
        self._check_nics()
        notes = []
        flows = len(self.workload.plan(self.fabric).channels) * self.workload.qps_per_connection
        windows_kb = self.fabric.hosts_per_leaf * self.workload.qps_per_connection * self.workload.window_bytes / 1024
        if windows_kb > self.fabric.buffer_kb:
            notes.append(f"the windows of all {self.fabric.hosts_per_leaf} hosts of a leaf ({windows_kb:,.0f} KB) do "
                         f"not fit into one port's buffer ({self.fabric.buffer_kb:,.0f} KB): collisions will drop")
        packet_us = theory.mtu_time_us(self.fabric.mtu_bytes, self.fabric.link_gbps)
        if self.ideal_us < 20 * packet_us:
            notes.append(f"an ideal iteration lasts {self.ideal_us:.1f} us, only {self.ideal_us / packet_us:.0f} "
                         "packet times: latency will weigh more than bandwidth")
        if self.workload.timeout_us < windows_kb * 1024 * 8 / (self.fabric.link_gbps * 1e3):
            notes.append(f"timeout_us={self.workload.timeout_us:g} is shorter than a full queue takes to drain: "
                         "packets that only wait will be sent again")
        if flows > 256:
            notes.append(f"{flows} flows: more than the 256 slots of a leaf's flow table")
        return notes

    def _check_nics(self) -> None:
        """Raises LabError when a NIC has not the memory or the queue pairs for a rank, or fabricd for all the flows."""
        from topologies.fabricd._core import lib
        from topologies.fabricd.binding import FLOWS

        job, lanes = self.workload.plan(self.fabric), self.workload.qps_per_connection
        for rank in job.ranks:
            pairs = lanes * sum((channel.source, channel.target).count(rank.index) for channel in job.channels)
            if pairs > lib.VERBS_MAX_QPS:
                raise LabError(f"{rank.host} needs {pairs} queue pairs, a NIC has {lib.VERBS_MAX_QPS}",
                               "lower qps_per_connection or the number of senders")
            machine = collectives.create(self.workload.agent, self.workload.arguments(job, rank))
            if machine.memory_bytes > lib.RNIC_ARENA_BYTES:
                raise LabError(f"{rank.host} needs {machine.memory_bytes:,} bytes of registered memory, a NIC has "
                               f"{lib.RNIC_ARENA_BYTES:,}", f"size_bytes={self.workload.size_bytes:,} is too large")
        flows = 2 * len(job.channels) * lanes * self.seeds
        if flows > FLOWS:
            raise LabError(f"{flows:,} flows in all, fabricd counts {FLOWS:,}", "fewer seeds, or several runs")


def exercises() -> list[str]:
    """Names of the labs that come with the project."""
    return sorted(path.parent.name for path in EXERCISES.glob(f"*/{LAB_FILE}"))


def find(name: str) -> Path:
    """The file of a lab: an exercise's name, the beginning of one if only one fits, or a path to a file or folder."""
    known = exercises()
    fitting = [name] if name in known else [exercise for exercise in known if exercise.startswith(name)]
    if len(fitting) == 1 and name:
        return EXERCISES / fitting[0] / LAB_FILE
    path = Path(name)
    if path.is_dir():
        path /= LAB_FILE
    if path.is_file():
        return path
    if "/" in name or name.endswith(".py"):
        raise LabError(f"{name}: no such file", "the path of a lab.py, or one of: " + ", ".join(known))
    raise unknown_name("lab", name, known)


def load(name: str) -> Lab:
    """The lab called `name` (see `find`).  Raises LabError for everything that is wrong with the file."""
    path = find(name)
    module_spec = importlib.util.spec_from_file_location(f"straggler_lab_{path.parent.name}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except SyntaxError as error:
        raise LabError(f"{path}:{error.lineno}: {error.msg}") from None
    except LabError as error:
        raise LabError(f"{path}:{_line(error, path)}: {error.message}", error.remedy) from None
    except TypeError as error:
        raise _wrong_argument(error, path) from None
    except Exception as error:
        raise LabError(f"{path}:{_line(error, path)}: {type(error).__name__}: {error}") from None
    lab = getattr(module, "LAB", None)
    if not isinstance(lab, Lab):
        raise LabError(f"{path}: it does not set LAB", "LAB = Lab(name=..., fabric=..., workload=...)")
    return lab.replace(path=path)


def _line(error: BaseException, path: Path) -> int:
    """The last line of the lab's own file that the error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return (lines[-1] if lines else None) or 1


def _wrong_argument(error: TypeError, path: Path) -> LabError:
    """Python's message about a keyword, in the words of a lab."""
    where = f"{path}:{_line(error, path)}"
    text = str(error)
    found = re.match(r"(\w+)\.__init__\(\) (?:got an unexpected keyword argument '(\w+)'|missing .*?: (.*))", text)
    if not found:
        return LabError(f"{where}: {text}")
    kind, unknown, missing = found.groups()
    if missing:
        return LabError(f"{where}: {kind} lacks {missing}")
    classes: dict[str, Any] = {"Lab": Lab, "FabricSpec": FabricSpec, "Expectation": Expectation,
                               **{name: value for name, value in vars(workloads).items() if isinstance(value, type)}}
    try:
        check_key(unknown, [f.name for f in dataclasses.fields(classes[kind])], kind)
    except (LabError, KeyError) as better:
        if isinstance(better, LabError):
            return LabError(f"{where}: {better.message}", better.remedy)
    return LabError(f"{where}: {text}")


def parse_parameters(settings: Iterable[str]) -> dict[str, object]:
    """ "parameter=value" strings of one policy; the policy itself converts and checks the values."""
    parameters: dict[str, object] = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not (key and equals and text):
            raise LabError(f"{setting!r} is not a setting", "write parameter=value, for example period_us=100")
        parameters[key] = text
    return parameters
