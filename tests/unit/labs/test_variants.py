"""Variants: what they change, who has the last word, and what a run is called."""

from __future__ import annotations

from typing import Any

import pytest

from labs.cli import sentence
from labs.faults import Fault, LinkDown, SlowReceiver
from labs.lab import Expectation, Lab
from labs.variants import means, plan
from labs.workload import Flow, Incast, Transfers
from topologies.errors import LabError
from topologies.spec import FabricSpec

SLOW = SlowReceiver("h0", drain_gbps=25)
LAB = Lab(
    name="test", module=2, title="A test", question="?", fabric=FabricSpec(leaves=2, hosts_per_leaf=3, slowdown=1000),
    workload=Incast(1 << 20, senders=2, dcqcn="paper", dcqcn_params={"g": 0.5}), policies=("ecmp", "dlb"),
    policy_params={"dlb": {"period_us": 50, "entries": 64}},
    variants={
        "base": {},
        "lossless": {"flow_control": "pfc", "senders": 4, "dlb.period_us": 100},
        "slow": {"flow_control": "pfc", "faults": (SLOW,), "dcqcn.ai_rate_mbps": 7},
        "nvidia": {"dcqcn": "nvidia", "dcqcn_params": {"g": 0.25}},
    },
    faults=(LinkDown("leaf0->spine0"),))


def test_a_variant_is_a_lab_with_some_keys_changed() -> None:
    lossless = LAB.variant("lossless")
    assert (lossless.variant_name, lossless.variants) == ("lossless", {})
    assert lossless.fabric == LAB.fabric.replace(flow_control="pfc")
    assert isinstance(lossless.workload, Incast)
    assert lossless.workload.senders == 4
    assert lossless.policy_params == {"dlb": {"period_us": 100, "entries": 64}}
    assert lossless.faults == LAB.faults
    slow = LAB.variant("slow")
    assert slow.faults == (SLOW,)
    assert slow.workload.dcqcn_params == {"g": 0.5, "ai_rate_mbps": 7}
    nvidia = LAB.variant("nvidia").workload.congestion_control(LAB.fabric)
    assert nvidia is not None
    assert (nvidia.g, nvidia.ai_rate_mbps) == (0.25, 5)
    assert LAB.variant("base") == LAB.replace(variants={}, variant_name="base")
    assert LAB.check() is not None


def test_the_command_line_has_the_last_word() -> None:
    changed = LAB.with_overrides(["senders=5", "dlb.period_us=9", "dcqcn.g=0.125", "link_gbps=200"])
    for lab in changed.concrete():
        assert isinstance(lab.workload, Incast)
        assert lab.workload.senders == 5
        assert lab.policy_params["dlb"]["period_us"] == "9"
        assert lab.workload.dcqcn_params["g"] == 0.125
        assert lab.fabric.link_gbps == 200
    assert changed.variant("lossless").fabric.flow_control == "pfc"
    assert changed.variant("slow").workload.dcqcn_params["ai_rate_mbps"] == 7
    assert {lab.fabric.flow_control for lab in LAB.with_overrides(["flow_control=credits"]).concrete()} == {"credits"}


def test_labels() -> None:
    assert [(run.label, run.seed) for run in plan(LAB.only(["slow", "base"]), [1, 2])][:4] == [
        ("base, ecmp", 1), ("base, dlb", 1), ("base, ecmp", 2), ("base, dlb", 2)]
    assert [run.label for run in plan(LAB.replace(policies=("ecmp",)), [1])] == ["base", "lossless", "slow", "nvidia"]
    assert [run.label for run in plan(LAB.replace(variants={}), [1])] == ["ecmp", "dlb"]
    (run, *_) = plan(LAB, [1])
    assert run.hosts == {"h0", "h3", "h4"}


@pytest.mark.parametrize(("name", "expected"), [
    ("slow", True), ("ecmp", True), ("slow, ecmp", True), ("slow, dlb", False), ("dlb", False), ("base", False),
    ("", False)])
def test_who_is_meant(name: str, expected: bool) -> None:
    assert means(name, "slow", "ecmp") == expected
    assert means(name, "", "ecmp") == (name == "ecmp")


def test_some_variants_only() -> None:
    lab = LAB.replace(expectations=(Expectation("slow", "drops"), Expectation("base", "drops"),
                                    Expectation("base, dlb", "drops"), Expectation("ecmp", "drops")),
                      may_fail=("slow", "base, ecmp"))
    lab.check()
    only = lab.only(["base"])
    only.check()
    assert list(only.variants) == ["base"]
    assert [expected.run for expected in only.expectations] == ["base", "base, dlb", "ecmp"]
    assert only.may_fail == ("base, ecmp",)
    assert only.variant("base").run_may_fail("ecmp")
    assert not only.variant("base").run_may_fail("dlb")
    assert lab.variant("slow").run_may_fail("dlb")


@pytest.mark.parametrize(("change", "expected"), [
    ({"variants": {"a": {"flow_controll": "pfc"}}},
     "variant 'a': unknown key 'flow_controll' of a fabric (did you mean flow_control?)"),
    ({"variants": {"a": {"sender": 3}}},
     "variant 'a': unknown key 'sender' of the fabric and of Incast (did you mean senders?)"),
    ({"variants": {"a": {"pfc": 3}}}, "variant 'a': unknown key 'pfc' of a fabric (did you mean flow_control?)"),
    ({"variants": {"a": {"senders": 30}}},
     "variant 'a': senders=30, but the fabric has 6 hosts (at most 5, or more leaves or hosts_per_leaf)"),
    ({"variants": {"a": {"dcqcn.aI": 30}}}, "variant 'a': unknown DCQCN parameter 'aI'"),
    ({"variants": {"a": {"dlbb.period_us": 30}}}, "variant 'a': unknown policy 'dlbb' (did you mean dlb?)"),
    ({"variants": {"a": {"faults": (SlowReceiver("h7", drain_gbps=2),)}}},
     "variant 'a': unknown host 'h7'"),
    ({"variants": {"a": {"dlb.perod_us": 3}}},
     "variant 'a': unknown parameter of policy dlb 'perod_us' (did you mean period_us?)"),
    ({"variants": {"a, b": {}}}, "variants: 'a, b' is not a name (text without commas, for example 'tail drop')"),
    ({"variants": ["a"]},
     """variants is not a mapping of mappings (for example {"pfc": {"flow_control": "pfc"}})"""),
    ({"expectations": (Expectation("loss", "drops"),)}, "unknown run 'loss' (did you mean lossless?)"),
    ({"expectations": (Expectation("slow, dlbb", "drops"),)}, "unknown policy 'dlbb' (did you mean dlb?)"),
    ({"may_fail": ("slwo",)}, "unknown run 'slwo' (did you mean slow?)"),
])
def test_a_variant_that_makes_no_sense(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(LabError) as caught:
        LAB.replace(**change).check()
    assert sentence(caught.value).startswith(expected)


def test_an_unknown_variant() -> None:
    for call in (lambda: LAB.variant("lossles"), lambda: LAB.only(["lossles"])):
        with pytest.raises(LabError) as caught:
            call()
        assert sentence(caught.value) == "unknown variant 'lossles' (did you mean lossless?)"


def test_what_is_recorded_of_variants() -> None:
    lab = LAB.replace(workload=Transfers(4096, flows=[Flow("h0", "h3")]), faults=(),
                      variants={"two": {"flows": (Flow("h0", "h3"), Flow("h1", "h3", dscp=10))},
                                "slow": {"faults": (SLOW,)}})
    shown = lab.parameters()
    assert shown["variant slow"] == {"faults": ["h0 takes in 25 Gb/s from 0 us on"]}
    assert shown["variant two"]["flows"][1] == {"source": "h1", "target": "h3", "size_bytes": None, "dscp": 10,
                                                "start_us": 0.0}
    assert lab.variant("slow").parameters()["faults"] == {"1": "h0 takes in 25 Gb/s from 0 us on"}


def test_variants_on_one_fabric_share_its_flows() -> None:
    many = {f"v{n}": {"window_bytes": 4096 * n} for n in range(1, 40)}  # the same flows again and again
    LAB.replace(variants=many, seeds=500, faults=()).check()
    others = {f"v{n}": {"receiver": f"h{n}", "senders": 5} for n in range(6)}
    with pytest.raises(LabError, match="30,000 flows in all, fabricd counts 16,384"):
        LAB.replace(variants=others, seeds=500, faults=()).check()


def test_one_fault_is_a_tuple_of_one() -> None:
    fault: Any = SLOW
    faults: tuple[Fault, ...] = LAB.replace(faults=fault).faults
    assert faults == (SLOW,)
