"""The server's side of the control socket: one JSON line in, one JSON line out.  Knows neither Ryu nor eventlet."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from topologies.errors import LabError, unknown_name

LINE_LIMIT_BYTES = 1 << 20

Operation = Callable[..., dict[str, Any]]


def answer(line: bytes, operations: Mapping[str, Operation]) -> bytes:
    """The reply to one request line.  Never raises: whatever goes wrong is in the reply."""
    try:
        reply: dict[str, Any] = {"ok": True, **_perform(line, operations)}
    except LabError as error:
        text = error.message if error.remedy is None else f"{error.message} ({error.remedy})"
        reply = {"ok": False, "error": text}
    except Exception as error:  # a bug of ours must not end the controller, nor go unseen
        logging.getLogger(__name__).exception("request %r", line[:200])
        reply = {"ok": False, "error": f"internal error: {type(error).__name__}: {error}"}
    return json.dumps(reply).encode() + b"\n"


def _perform(line: bytes, operations: Mapping[str, Operation]) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError:
        raise LabError("the request is not JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise LabError('the request has no operation', '{"op": "status"}')
    name = request.pop("op")
    if name not in operations:
        raise unknown_name("operation", name, operations)
    operation = operations[name]
    accepted = operation.__annotations__.keys() - {"return"}
    for key in request:
        if key not in accepted:
            raise unknown_name(f"argument of {name}", key, accepted)
    try:
        inspect.signature(operation).bind(**request)
    except TypeError as error:
        raise LabError(f"{name}: {error}") from None
    return operation(**request)


def serve(connection: Any, operations: Mapping[str, Operation]) -> None:
    """Answer the requests of one connection until it closes."""
    pending = b""
    try:
        while True:
            chunk = connection.recv(65536)
            if not chunk:
                return
            pending += chunk
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                connection.sendall(answer(line, operations))
            if len(pending) > LINE_LIMIT_BYTES:
                return
    except OSError:
        return  # the client is gone
    finally:
        connection.close()
