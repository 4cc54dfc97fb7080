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

import labs.faults as faults_module
import labs.workload as workloads
from controllers.registry import create_policy
from labs import variants as variants_module
from labs.agents import collectives
from labs.faults import Fault, Scene, check_all
from labs.measure import theory
from labs.variants import Variant
from labs.workload import Workload, check_key
from topologies.errors import LabError, unknown_name
from topologies.fabric import describe
from topologies.spec import FabricSpec

EXERCISES = Path(__file__).parent / "exercises"
LAB_FILE = "lab.py"
QUICK_ITERATIONS = 2
_LIMITS = {"seeds": (1, 1000), "iterations": (1, 100_000), "warmup": (0, 1000)}


@dataclass(frozen=True)
class Expectation:
    """What a lab should show: `key` of run.json's runs (e.g. "jct_ratio") within bounds.

    run: the runs that it is about: their policy, their variant, or "variant, policy".
    """

    run: str
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
    variants: name -> what differs (labs/variants.py), in the order of the runs; none: the lab as it stands here.
    faults: what breaks (labs/faults.py), in every variant that does not say so itself.
    may_fail: runs whose ranks need not finish, named as in an Expectation: a deadlock, a dead link.
    variant_name: of a lab that is one variant of another.
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
    variants: Mapping[str, Variant] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    may_fail: tuple[str, ...] = ()
    variant_name: str = ""

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
        for key in ("faults", "may_fail"):
            value = getattr(self, key)
            object.__setattr__(self, key, tuple(value) if isinstance(value, (list, tuple)) else (value,))
        self.workload.plan(self.fabric)  # raises when the fabric has not the hosts for it
        variants_module.check_names(self.variants)
        for name in self.variants:
            self.variant(name)

    def variant(self, name: str) -> Lab:
        """The lab as it is in one of its variants.  Raises LabError when there is no such variant."""
        return variants_module.concrete(self, name)

    def concrete(self) -> list[Lab]:
        """One lab for each variant; itself if it has none."""
        return [self.variant(name) for name in self.variants] or [self]

    def only(self, names: Iterable[str]) -> Lab:
        """The same with some of its variants, in the lab's order."""
        chosen = set(names)
        for name in chosen:
            if name not in self.variants:
                raise unknown_name("variant", name, self.variants)

        def stays(name: str) -> bool:
            return name.partition(variants_module.SEPARATOR)[0] not in self.variants.keys() - chosen

        return self.replace(variants={name: variant for name, variant in self.variants.items() if name in chosen},
                            expectations=tuple(expected for expected in self.expectations if stays(expected.run)),
                            may_fail=tuple(name for name in self.may_fail if stays(name)))

    def run_may_fail(self, policy: str) -> bool:
        """Whether ranks of a run of this variant need not finish."""
        return any(variants_module.means(name, self.variant_name, policy) for name in self.may_fail)

    def replace(self, **values: Any) -> Lab:
        """A copy with some fields changed, and everything checked again."""
        return dataclasses.replace(self, **values)

    def with_overrides(self, settings: Iterable[str]) -> Lab:
        """A copy with `--set key=value` applied: keys of the fabric, of the workload, dcqcn.FIELD, POLICY.PARAMETER."""
        texts = {}
        for setting in settings:
            key, equals, text = (part.strip() for part in setting.partition("="))
            if not (key and equals and text):
                raise LabError(f"--set {setting!r} is not a setting", "write key=value, for example buffer_kb=64")
            texts[key] = text
        difference = variants_module.sort_keys(texts, self.workload)
        fabric, load = ([f"{key}={text}" for key, text in part.items()]
                        for part in (difference.fabric, difference.workload))
        return self.replace(fabric=self.fabric.with_overrides(fabric), workload=self.workload.with_overrides(load),
                            policy_params=variants_module.merged(self.policy_params, difference.params),
                            variants=variants_module.without(self.variants, texts))

    def quick(self) -> Lab:
        """The same lab with half the bytes and few iterations, for a first look."""
        return self.replace(workload=self.workload.quick(), seeds=1, iterations=min(self.iterations, QUICK_ITERATIONS),
                            warmup=min(self.warmup, 1))

    @property
    def ideal_us(self) -> float:
        """One iteration on an ideal fabric: compute phase and communication."""
        return self.workload.compute_us + self.workload.communication_us(self.fabric)

    def estimated_lab_s(self) -> float:
        """Lab seconds of all iterations of all runs, if every one took twice the ideal."""
        iterations = len(self.policies) * self.seeds * (self.iterations + self.warmup)
        return sum(iterations * 2 * lab.fabric.clock.lab_ns(lab.ideal_us) / 1e9 for lab in self.concrete())

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Every effective parameter, by section, as printed before a run."""
        return {
            "lab": {"name": self.name, "policies": ", ".join(self.policies), "seeds": self.seeds,
                    "iterations": self.iterations, "warmup": self.warmup},
            "fabric": {**self.fabric.to_dict(), "uplink_gbps": self.fabric.uplink_rate_gbps},
            "workload": self.workload.describe(self.fabric),
            **{f"policy {name}": dict(values) for name, values in self.policy_params.items() if values},
            **({"faults": {str(n): fault.planned for n, fault in enumerate(self.faults, 1)}} if self.faults else {}),
            **{f"variant {name}": _plain(variant) for name, variant in self.variants.items()},
        }

    def check(self) -> list[str]:
        """What is odd but possible, one sentence each.  Raises LabError for what is not possible.  No root needed."""
        for name in (*(expected.run for expected in self.expectations), *self.may_fail):
            variants_module.check_run_name(name, self)
        notes = []
        self._check_flows()
        for lab in self.concrete():
            prefix = f"{lab.variant_name}: " if lab.variant_name else ""
            try:
                notes += [prefix + note for note in lab._check_one()]
            except LabError as error:
                raise LabError(f"variant {lab.variant_name!r}: {error.message}" if prefix else error.message,
                               error.remedy) from None
        return notes

    def _check_one(self) -> list[str]:
        """The same of a lab without variants."""
        for policy in (*self.policies, *self.policy_params):
            create_policy(policy, self.policy_params.get(policy))
        check_all(self.faults, self.scene())
        self._check_nics()
        notes = []
        flows = len(self.workload.plan(self.fabric).channels) * self.workload.qps_per_connection
        windows_kb = self.fabric.hosts_per_leaf * self.workload.qps_per_connection * self.workload.window_bytes / 1024
        if windows_kb > self.fabric.buffer_kb and self.fabric.flow_control == "none" and self.fabric.leaves > 1:
            notes.append(f"the windows of all {self.fabric.hosts_per_leaf} hosts of a leaf ({windows_kb:,.0f} KB) do "
                         f"not fit into one port's buffer ({self.fabric.buffer_kb:,.0f} KB): collisions will drop")
        packet_us = theory.mtu_time_us(self.fabric.mtu_bytes, self.fabric.link_gbps)
        if self.ideal_us < 20 * packet_us:
            notes.append(f"an ideal iteration lasts {self.ideal_us:.1f} us, only {self.ideal_us / packet_us:.0f} "
                         "packet times: latency will weigh more than bandwidth")
        if self.workload.timeout_us < windows_kb * 1024 * 8 / (self.fabric.link_gbps * 1e3):
            notes.append(f"timeout_us={self.workload.timeout_us:g} is shorter than a full queue takes to drain: "
                         "packets that only wait will be sent again")
        if self.workload.patience_us is not None and self.workload.patience_us <= self.workload.timeout_us:
            notes.append(f"patience_us={self.workload.patience_us:g} is not longer than timeout_us="
                         f"{self.workload.timeout_us:g}: a run that waits for a lost packet is given up")
        if self.workload.dcqcn != "none" and self.fabric.ecn_kmin_kb is None and not self.fabric.switch_profiles:
            notes.append(f"dcqcn={self.workload.dcqcn}, but no switch marks: set ecn_kmin_kb and ecn_kmax_kb")
        if flows > 256:
            notes.append(f"{flows} flows: more than the 256 slots of a leaf's flow table")
        return notes

    def scene(self) -> Scene:
        """The fabric and the job that faults are checked with; times mean nothing while the slowdown is "auto"."""
        fabric = self.fabric.replace(slowdown=1) if isinstance(self.fabric.slowdown, str) else self.fabric
        return Scene(describe(fabric), self.workload, self.workload.plan(self.fabric))

    def _check_flows(self) -> None:
        """Raises LabError when fabricd cannot count all the flows that one fabric sees."""
        from topologies.fabricd.binding import FLOWS

        jobs = []  # of all variants on the same fabric, if they are others: the same job has the same flows again
        for lab in self.concrete():
            job = (lab.fabric, lab.workload.plan(lab.fabric), lab.workload.qps_per_connection)
            if job not in jobs:
                jobs.append(job)
        for fabric, _, _ in jobs:
            flows = 2 * self.seeds * sum(len(job.channels) * lanes for other, job, lanes in jobs if other == fabric)
            if flows > FLOWS:
                raise LabError(f"{flows:,} flows in all, fabricd counts {FLOWS:,}", "fewer seeds, or several runs")

    def _check_nics(self) -> None:
        """Raises LabError when a NIC has not the memory or the queue pairs for a rank."""
        from topologies.fabricd._core import lib

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


def _plain(variant: Variant) -> dict[str, Any]:
    """A variant as results record it: faults in words, flows as mappings."""
    def plain(value: Any) -> Any:
        if isinstance(value, Fault):
            return value.planned
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return {key: plain(value) for key, value in variant.items()}


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
    classes: dict[str, Any] = {"Lab": Lab, "FabricSpec": FabricSpec, "Expectation": Expectation}
    for module in (workloads, faults_module):
        classes |= {name: value for name, value in vars(module).items() if isinstance(value, type)}
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
