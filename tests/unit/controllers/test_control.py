"""The control socket's protocol, and the process when it cannot start."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from controllers import process
from controllers.client import ControllerClient
from controllers.control import answer, serve
from controllers.options import Options
from topologies.errors import LabError


def double(number: int) -> dict[str, Any]:
    return {"result": 2 * number}


def refuse() -> dict[str, Any]:
    raise LabError("no", "try another")


def fail() -> dict[str, Any]:
    return {"result": 1 // 0}


OPERATIONS = {"double": double, "refuse": refuse, "fail": fail}


@pytest.mark.parametrize(("request_", "reply"), [
    (b'{"op": "double", "number": 4}', {"ok": True, "result": 8}),
    (b'{"op": "refuse"}', {"ok": False, "error": "no (try another)"}),
    (b'{"op": "dubble"}', {"ok": False, "error": "unknown operation 'dubble' (did you mean double?)"}),
    (b'{"op": "double", "numbr": 4}',
     {"ok": False, "error": "unknown argument of double 'numbr' (did you mean number?)"}),
    (b"nonsense", {"ok": False, "error": "the request is not JSON"}),
    (b"[]", {"ok": False, "error": 'the request has no operation ({"op": "status"})'}),
    (b'{"op": 3}', {"ok": False, "error": 'the request has no operation ({"op": "status"})'}),
    (b'{"op": "fail"}', {"ok": False,
                         "error": "internal error: ZeroDivisionError: integer division or modulo by zero"}),
    (b"\xff\xfe", {"ok": False, "error": "the request is not JSON"}),
])
def test_every_request_gets_an_answer(request_: bytes, reply: dict[str, Any]) -> None:
    assert json.loads(answer(request_, OPERATIONS)) == reply


def test_a_missing_argument_is_said() -> None:
    reply = json.loads(answer(b'{"op": "double"}', OPERATIONS))
    assert reply["error"] == "double: missing a required argument: 'number'"


def test_requests_may_come_in_pieces_and_several_at_once() -> None:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=serve, args=(theirs, OPERATIONS))
    server.start()
    with ours:
        for piece in (b'{"op": "dou', b'ble", "number": 1}\n{"op": "double", "number": 2}\n{"op"', b': "refuse"}\n'):
            ours.sendall(piece)
        lines = ours.makefile().readline
        assert [json.loads(lines()) for _ in range(3)] == [
            {"ok": True, "result": 2}, {"ok": True, "result": 4}, {"ok": False, "error": "no (try another)"}]
        ours.shutdown(socket.SHUT_WR)
        server.join(5)
    assert not server.is_alive()


def test_the_client_finds_a_policy_file_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def policy(name: str) -> dict[str, Any]:
        asked.append(name)
        return {}

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "c.sock"))
    listener.listen()
    server = threading.Thread(target=lambda: serve(listener.accept()[0], {"policy": policy}))
    server.start()
    monkeypatch.chdir(tmp_path)
    with ControllerClient(tmp_path / "c.sock") as client:
        client.call("policy", name="./mine.py")
        client.call("policy", name="ecmp")
    server.join(5)
    listener.close()
    assert asked == [str(tmp_path / "mine.py"), "ecmp"]


def test_options_survive_the_command_line() -> None:
    options = Options(policy="dlb", parameters={"margin": 0.3}, seed=4, same_seed=True, parent_pid=7)
    assert Options.from_json(options.to_json()) == options


def places(tmp_path: Path) -> dict[str, Any]:
    return {"socket_path": tmp_path / "run" / "c.sock", "log_path": tmp_path / "run" / "c.log", "fabricd_socket": None}


def test_ryu_that_does_not_start_is_reported_with_the_end_of_its_log(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "ryu"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('cannot import name get_script_args')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(LabError, match=r"ended with status 1: .*cannot import name get_script_args") as caught:
        process.start(tmp_path / "fabric.json", **places(tmp_path))
    assert "c.log" in str(caught.value.remedy)


def test_an_unknown_policy_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="unknown policy 'ecmpp'"):
        process.start(tmp_path / "fabric.json", "ecmpp", **places(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_controller_waits_for_its_fabric_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    with process.start(path, **places(tmp_path)) as controller:
        status = controller.call("status")
        assert (status["ready"], status["connected"], status["policy"]) == (False, [], None)
        with pytest.raises(LabError, match="knows no fabric yet"):
            controller.call("policy", name="ecmp")
        path.write_text('{"schema": 99}')
        with pytest.raises(LabError, match="the controller is not ready: the fabric's description has schema 99"):
            controller.wait_ready(2.0)
        assert controller.alive()
    assert not controller.alive()
    assert not (tmp_path / "run" / "c.sock").exists()
    controller.stop()  # once more: harmless
